"""The service: works with existing clients; one scheduler serves all requests.

command.py      `l0drop serve`: options, loading, uvicorn
server.py       the Starlette application: routes, lifespan
guard.py        what every request passes: host, origin, key, concurrency, security headers, log
requests.py     bodies within limits, strict JSON, errors as answers
limits.py       the limits of the service
models.py       the models that are served: names, languages, tasks, what their dial can do
service.py      from a query to results: checks, splitting, decoding, shadow
turns.py        reading of inputs in one thread, in turns
scheduler.py    one fair queue for all connections, batches, deadlines
shadow.py       a share of requests decoded a second time, for comparison
metrics.py      Prometheus
native.py       l0drop's own API: /v1/generate, /v1/explain
speech.py       l0drop's own API for audio: /v1/transcribe
libretranslate.py, huggingface.py, openai.py    the other dialects
openapi.py      the description of all of them
page.py, page.html    the page that shows what was dropped
"""
