"""A web service that embeds texts and watches its own encoder.

Clients see embeddings. Operators see /health and /metrics.

    pip install '.[encoder,monitor]' fastapi uvicorn sentence-transformers     # in the folder of the clone
    METASTABLE_MODEL=./my-encoder METASTABLE_BASELINE=baseline uvicorn fastapi_service:app

The model is used as always. While the monitor is entered, every text that goes through it gets a p-value, and
failures of the monitor never reach a request.

`metastable calibrate ./my-encoder --texts clean.txt --out baseline` makes the baseline.
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from pydantic import BaseModel, Field
from sentence_transformers import SentenceTransformer

import metastable as ms
from metastable.monitor.sinks import JsonLines, Prometheus


class Texts(BaseModel):
    texts: Annotated[list[str], Field(max_length=256)]


def told(monitor: ms.Monitor) -> None:
    log = logging.getLogger("service")
    log.warning("the texts are not like the clean ones: alarm at text %s", monitor.raised_at)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    model = SentenceTransformer(os.environ["METASTABLE_MODEL"], device="cpu")
    registry = CollectorRegistry()
    # Without words: the texts belong to the users.
    sinks = [Prometheus(registry), JsonLines("records.jsonl", tokens=False)]
    with ms.Monitor(model, os.environ["METASTABLE_BASELINE"], sinks=sinks, on_alarm=told) as monitor:
        app.state.model, app.state.monitor, app.state.registry = model, monitor, registry
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/embed")
def embed(given: Texts, request: Request) -> list[list[float]]:
    """Not `async`: FastAPI runs it in a thread, and other requests go on meanwhile."""
    return request.app.state.model.encode(given.texts).tolist()


@app.get("/health")
def health(request: Request) -> dict[str, Any]:
    return request.app.state.monitor.summary()


@app.get("/metrics")
def metrics(request: Request) -> Response:
    return Response(generate_latest(request.app.state.registry), media_type=CONTENT_TYPE_LATEST)
