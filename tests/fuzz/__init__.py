"""The fuzzer: random arguments, files, weights, texts and settings, in search of tracebacks and wrong answers.

`make fuzz` runs it; `python -m tests.fuzz --help` lists the options. A target is a module with `cases()`, a strategy of
JSON values, and `check(case, stage)`, which raises an exception if the case is a finding:

    arguments   the command line
    files       changed JSON and YAML files of models, runs and sweeps
    weights     changed safetensors files
    text        input text: any bytes, compressed, as JSON lines, resumed
    engine      settings of the engine, compared with Hugging Face's generate
"""
