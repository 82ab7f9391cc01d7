"""Analysis of a sparse model, as numbers for JSON: dropped tokens, attention, the cost of closing other gates.

subject.py        loads the models and the annotated text of an analysis
material.py       the text in batches; cross-entropy of forced targets
annotate.py       labels source tokens: groups of words, pieces of split words
attention.py      attention mass, entropy, attention maps of single sentences
dropped.py        sparsity by group, word, frequency, length, position and layer
interventions.py  cost of closing gates manually
source_use.py     scores with another sentence's source, and with an empty one
timing.py         the decoder's time in cross-attention
job.py            one analysis from a folder to its files
parts.py          the parts of an analysis, measured in one pass over the text; runs and sweeps
tables.py         the numbers as tables, for reports and documents
"""
