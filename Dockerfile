# The service in a container; see docs/service.md. Models are mounted, not copied.
#   docker build -t l0drop .
#   docker run --init -p 8000:8000 -v $PWD/runs:/models:ro -e L0DROP_KEYS=a-long-secret l0drop /models/sparse
FROM python:3.11-slim

WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md ./
COPY l0drop ./l0drop
RUN pip install --no-cache-dir --constraint constraints.txt '.[audio,serve]' \
    && useradd --system --create-home l0drop
USER l0drop
ENV HF_HOME=/tmp/huggingface
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz')"]
# SIGTERM reaches the service itself, which finishes the requests that it has accepted.
ENTRYPOINT ["l0drop", "serve", "--host", "0.0.0.0", "--port", "8000"]
