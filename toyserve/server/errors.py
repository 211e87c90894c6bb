"""Errors in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``, always."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from toyserve.server.wire import dump

_TYPES = {
    401: ("authentication_error", "invalid_api_key"),
    404: ("not_found_error", "not_found"),
    405: ("invalid_request_error", "method_not_allowed"),
    408: ("invalid_request_error", "timeout"),
    413: ("invalid_request_error", "request_too_large"),
    429: ("rate_limit_error", "queue_full"),
    499: ("invalid_request_error", "client_closed_request"),
    503: ("service_unavailable_error", "unavailable"),
}


class ApiError(Exception):
    """What a client is to be told. param: the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}
        self.param, self.code = param, code

    @property
    def body(self) -> dict[str, Any]:
        fallback = "server_error" if self.status >= 500 else "invalid_request_error"
        kind, code = _TYPES.get(self.status, (fallback, None))
        error = {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code or code,
        }
        return {"error": error}

    def response(self) -> Response:
        return json_response(self.body, self.status, self.headers)


def json_response(
    content: Any, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(dump(content), status, headers, "application/json")


def install(app: FastAPI) -> None:
    """Every way in which a request can fail ends in an ApiError's response."""

    async def on_api_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return error.response()

    async def on_invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return as_api_error(error).response()

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = str(error.detail)
        if error.status_code == 404:
            message = f"there is nothing at {request.url.path!r}"
        elif error.status_code == 405:
            message = f"{request.url.path!r} does not take {request.method}"
        headers = dict(error.headers or {})
        return ApiError(error.status_code, message, headers=headers).response()

    async def on_bug(_: Request, error: Exception) -> Response:
        return ApiError(500, f"the server failed: {type(error).__name__}").response()

    app.add_exception_handler(ApiError, on_api_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_bug)


def as_api_error(error: RequestValidationError) -> ApiError:
    """The first complaint, with the field's name and what stood there."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    if first["type"] == "json_invalid":
        detail = first.get("ctx", {}).get("error", "it cannot be read")
        return ApiError(400, f"the body is not valid JSON: {detail}", code="invalid_json")
    field = path[0] if path else None
    given = repr(first.get("input"))
    if field is None:
        return ApiError(400, f"the body must be a JSON object: {first['msg']}")
    message = f"{'.'.join(path[:3])} is {given[:100]}: {first['msg']}"
    if first["type"] == "missing":
        message = f"{field} is missing"
    return ApiError(400, message, param=field)
