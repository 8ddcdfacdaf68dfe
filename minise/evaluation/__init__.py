"""Answers on the disk, line by line; numbers, tables and pictures made from them alone."""
