"""Studies of speech: how good the transcripts of a gated Whisper are, and which rows it drops.

transcripts.py  from clips to texts, with sparsity and time
evaluate.py     error rates, differences within speakers, verdicts
tail.py         tail risk
words.py        times of words
analysis.py     dropped rows by energy, position and place in words
tables.py       all of it as tables
"""
