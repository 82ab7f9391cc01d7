"""Studies: train several models, evaluate them, compare them, and analyse what they drop.

sweep.py                one baseline fine-tuned at several sparsities, and continued without a gate
study.py                a task's recipes and systems, planned, trained and gathered
seeds.py                systems with several seeds, trained and compared
parallel.py             several runs at a time, each in its own process
distillation.py         training text and overrides for token-level and sequence-level distillation
dial.py                 scores at several settings of the dial
evaluate.py             scores, differences and tail risk of outputs; writes evaluation/
evaluation_job.py       one evaluation from folders and files to its results
systems.py              the systems to evaluate: models, or files of outputs
sentence_statistics.py  per-sentence counts, from which scores and intervals are computed
significance.py         bootstrap over texts, and intervals over independent baselines
verdict.py              what a comparison shows, in words
agreement.py            which evaluations one table may hold
shown.py                the model of a sweep that the report and the analysis look at in full
source_need.py          a warning for models that hardly use their source
tail.py                 tail risk: large losses, missing numbers, names and negations, lengths
examples.py             the sentences that reports show
analysis/               dropped tokens, attention, and the cost of closing other gates
"""
