"""Studies of speech: how good the transcripts of a gated Whisper are, and which rows it drops.

source.py       the clips and settings of a run
transcripts.py  from clips to texts, with sparsity and time
evaluate.py     error rates, differences within speakers, verdicts
tail.py         tail risk
words.py        times of words
analysis.py     dropped rows by energy, position and place in words
"""
