"""Programs that only measure: how long engines take, parts of an answer, a GPU, and the records."""
