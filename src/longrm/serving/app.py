"""The routes of the server, and who may use them."""

import asyncio
import hmac
import logging
import re
import time
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from html import escape
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from prometheus_client import generate_latest
from pydantic.json_schema import models_json_schema
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from longrm import __version__
from longrm.reading import visible
from longrm.reward_models.protocol import RewardModel
from longrm.serving import service as limits
from longrm.serving.service import ScoringService
from longrm.serving.settings import ServeSettings
from longrm.serving.wire import STATUSES, Failure, Route
from longrm.serving.wire_formats import WIRE_FORMATS
from longrm.serving.worker import Worker

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 4096
"""Connections open at once, or fewer if the limit of open files (`ulimit -n`) is lower."""

RECEIVE_SECONDS = 30.0
"""How long the headers and the body of a request may take to arrive."""

OPEN_PATHS = frozenset({"/", "/health", "/ready"})
"""Paths that need no key."""


def build_app(settings: ServeSettings, load: Callable[[], RewardModel]) -> FastAPI:
    """Loads a model and returns the application that serves it; `load` is called on the model's own thread.

    Raises:
        ConfigError: The prefix cache is too small for one block of tokens.
    """

    def load_with_cache() -> RewardModel:
        model = load()
        if settings.limits.prefix_cache_bytes != 0 and hasattr(model, "choose"):
            model.keep_prefixes(settings.limits.prefix_cache_bytes)
        return model

    worker = Worker(load_with_cache, settings.limits.waiting)
    service = ScoringService(settings, worker)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.draining = True
        # No client waits any more. An operator of a forward pass is waited for: a thread in native code can crash the
        # process.
        await asyncio.to_thread(worker.stop, limits.DRAIN_SECONDS)

    app = FastAPI(title="longrm", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    app.add_middleware(Guard, settings=settings)
    if settings.allow_origins:  # outside the guard: browsers send preflight requests without a key
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allow_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        )
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected_error)
    definitions = _add_scoring_routes(app, service)
    _add_info_routes(app, service, settings)
    app.openapi().setdefault("components", {}).setdefault("schemas", {}).update(definitions)
    return app


def _add_scoring_routes(app: FastAPI, service: ScoringService) -> dict[str, Any]:
    """Adds one route per path; formats that share a path are distinguished by the fields of a body.

    Returns the JSON schemas that the routes refer to. FastAPI does not know the bodies: the service reads them itself,
    within its limits.
    """
    routes: dict[str, list[Route]] = {}
    formats: dict[str, list[str]] = {}
    for name, wire_format in WIRE_FORMATS.items():
        for route in wire_format:
            routes.setdefault(route.path, []).append(route)
            formats.setdefault(route.path, []).append(name)
    bodies = dict.fromkeys(route.body for ways in routes.values() for route in ways)
    schemas, definitions = models_json_schema(
        [(body, "validation") for body in bodies], ref_template="#/components/schemas/{model}"
    )
    for path, ways in routes.items():
        content = {
            "schema": {"anyOf": [schemas[way.body, "validation"] for way in ways]},
            "examples": {way.body.__name__: {"value": way.example} for way in ways},
        }
        app.add_api_route(
            path,
            _endpoint(service, ways),
            methods=["POST"],
            summary=f"Score responses (format: {' or '.join(formats[path])})",
            openapi_extra={"requestBody": {"required": True, "content": {"application/json": content}}},
            responses={
                status: {"description": HTTPStatus(status).phrase} for status in (200, *STATUSES.values())
            },
        )
    return dict(definitions.get("$defs", {}))


def _endpoint(service: ScoringService, routes: Sequence[Route]) -> Callable[[Request], Awaitable[Response]]:
    async def score(request: Request) -> Response:
        return await service.answer(request, routes)

    return score


def _add_info_routes(app: FastAPI, service: ScoringService, settings: ServeSettings) -> None:
    worker, model = service.worker, service.worker.model
    cache = model.prefix_cache
    info = {
        "model": service.name,
        "version": __version__,
        "scale": model.scale,
        "max_tokens": model.limit,
        "prefix_cache_tokens": 0 if cache is None else cache.capacity,
        "provenance": dict(model.provenance),
        "limits": {
            "waiting": settings.limits.waiting,
            "waiting_bytes": limits.MAX_WAITING_BYTES,
            "body_bytes": service.body_bytes,
            "prompts": limits.MAX_PROMPTS,
            "responses": limits.MAX_RESPONSES,
            "connections": MAX_CONNECTIONS,
            "receive_seconds": RECEIVE_SECONDS,
            "seconds": settings.limits.seconds,
            "drain_seconds": limits.DRAIN_SECONDS,
            "prefix_cache_bytes": 0 if cache is None else cache.table.blocks * cache.block_bytes,
        },
        "formats": {name: [route.path for route in routes] for name, routes in WIRE_FORMATS.items()},
    }
    started, page = int(time.time()), front_page(service.name)

    @app.get("/", summary="A page to try the model", include_in_schema=False)
    async def index() -> Response:
        return page

    @app.get("/health", summary="Whether the server is alive, also while the model works")
    async def health() -> Response:
        status = "ok" if worker.alive else "the model's thread has ended"
        return JSONResponse({"status": status}, 200 if worker.alive else 503)

    @app.get("/ready", summary="Whether requests are accepted")
    async def ready() -> Response:
        accepting = worker.alive and not service.draining
        return JSONResponse({"ready": accepting}, 200 if accepting else 503)

    @app.get("/metrics", summary="Metrics for Prometheus")
    async def metrics() -> Response:
        text = generate_latest(service.registry)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/info", summary="The model, the limits and the formats")
    async def information() -> Response:
        return JSONResponse(info)

    @app.get("/v1/models", summary="The model, in OpenAI's list format")
    async def models() -> Response:
        entry = {"id": service.name, "object": "model", "created": started, "owned_by": "longrm"}
        return JSONResponse({"object": "list", "data": [entry]})


def front_page(model: str) -> HTMLResponse:
    """The page at `/`. It loads nothing, and its policy allows its own script and style and no others."""
    text = (files("longrm.serving") / "page.html").read_text(encoding="utf-8")
    text = text.replace("MODEL", escape(visible(model)))
    allowed = {}
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.S)
        allowed[tag] = f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
    policy = (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; img-src data:; "
        "connect-src 'self' http: https:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return HTMLResponse(text, headers=headers)


class Guard:
    """Middleware that refuses requests without the key or, if the server has none, those that a web page could send.

    The key is the token of `Authorization: Bearer KEY`, or the password of `Authorization: Basic`, which clients send
    that have no setting for a key but a URL `http://any:KEY@host:port/path`.

    Without a key, a web page that a user of this machine opens must not use the server, neither across origins nor by
    a name that the page's owner resolves to the server's address (DNS rebinding), which the Host header shows.
    Starlette's `TrustedHostMiddleware` supports neither IPv6 addresses nor a wildcard for IP addresses.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self._app = app
        self._settings = settings
        self._key = None if settings.api_key is None else settings.api_key.get_secret_value().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on, or refuses it."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if self._key is None:
                failure = self._foreign(scope["method"], headers)
            else:
                failure = self._unauthorized(scope["path"], headers.get("authorization"), self._key)
            if failure is not None:
                more = {"WWW-Authenticate": "Bearer"} if failure.kind == "unauthorized" else None
                await JSONResponse(failure.body, failure.status, more)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _unauthorized(self, path: str, header: str | None, key: bytes) -> Failure | None:
        if header is None and path in OPEN_PATHS:
            return None
        scheme, _, value = (header or "").partition(" ")
        given = b""
        if scheme.lower() == "bearer":
            given = value.strip().encode("latin-1")
        elif scheme.lower() == "basic":
            with suppress(Base64Error):
                given = b64decode(value.encode("latin-1"), validate=True).partition(b":")[2]
        if hmac.compare_digest(given, key):
            return None
        return Failure("unauthorized", "the key is missing or wrong: send Authorization: Bearer KEY")

    def _foreign(self, method: str, headers: Headers) -> Failure | None:
        host, origin = headers.get("host", ""), headers.get("origin", "")
        try:
            hostname = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            hostname = ""
        if host and not self._settings.accepts_host(hostname):
            return Failure("forbidden", "the Host of this request is not allowed: see --allowed-host")
        allowed = self._settings.allow_origins
        if origin and origin.partition("://")[2] != host and not {origin, "*"} & set(allowed):
            return Failure("forbidden", "the Origin of this request is not allowed: see allow_origins")
        # Browsers send these across origins without asking first.
        form_types = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method == "POST" and kind in form_types:
            return Failure("encoded", "the body must be JSON: send Content-Type: application/json")
        return None


async def _http_error(request: Request, error: Exception) -> Response:
    """An unknown path or method, in the form of all other errors."""
    assert isinstance(error, HTTPException)
    message = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND:
        paths = dict.fromkeys(route.path for ways in WIRE_FORMATS.values() for route in ways)
        message = (
            f"no such route; this server scores responses: POST to {', '.join(paths)} (see /openapi.json)"
        )
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"this route needs {(error.headers or {}).get('Allow', 'another method')}"
    body = {"message": message, "type": "invalid", "code": error.status_code}
    return JSONResponse({"error": body}, error.status_code, error.headers)


async def _unexpected_error(request: Request, error: Exception) -> Response:
    _log.error("a request failed", exc_info=error)
    failure = Failure("internal", "the server failed; see its log")
    return JSONResponse(failure.body, failure.status)
