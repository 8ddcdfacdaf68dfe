"""Layers without attention under the mask: Gated DeltaNet, KDA, Mamba and Mamba-2, and short
convolutions. Attention lets a token read its ancestors; such a layer lets it continue from its
parent, and both follow from the same mask.

Read in this order: paths.py (what a mask says to such a layer), steps.py (the rule, by its
definition), chunks.py (the closed form that runs), convolution.py, along.py (both along a path),
qwen35.py (a family of models), definition.py (the same family by its definition), kept.py (tokens
that follow others).
"""
