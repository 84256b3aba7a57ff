"""
The routes of files and batches: OpenAI's below `/v1/files` and `/v1/batches`, Anthropic's below `/v1/messages/batches`.

Callers with different access keys never see each other's files and batches.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from msgspec.structs import replace
from starlette.responses import FileResponse, Response, StreamingResponse

from headrace.core.errors import Busy, PayloadTooLarge
from headrace.serving.batches.service import Batches
from headrace.serving.batches.store import Paging, new_id
from headrace.serving.batches.upload import Upload
from headrace.serving.http.asgi import Receive, Scope, Send, caller_of, content_length, header
from headrace.serving.http.body import BodyTooLarge, read_body
from headrace.serving.wire.anthropic import batches as anthropic
from headrace.serving.wire.batches import ENDED, WINDOW_S, Batch
from headrace.serving.wire.framing import JSON_CONTENT_TYPE, to_json
from headrace.serving.wire.json_size import check_json_size
from headrace.serving.wire.openai import batches as openai
from headrace.serving.wire.openai import files
from headrace.serving.wire.unknown_routes import BATCHES, FILES, MESSAGE_BATCHES, MESSAGES

MAX_UPLOADS: Final = 8
"""Uploads at the same time; each holds a megabyte."""
_MAX_BATCH_BODY_BYTES: Final = 64 * 1024
_FILE_TYPE: Final = "application/octet-stream"
_RESULTS_TYPE: Final = "application/x-jsonl"
_ROUTE: Final = re.compile(rf"({FILES}|{BATCHES}|{MESSAGE_BATCHES})(?:/([^/]+)(?:/([a-z]+))?)?")
_LINES_AT_ONCE: Final = 100
_FILE_QUERY: Final = frozenset({"purpose", "limit", "order", "after"})
_BATCH_QUERY: Final = frozenset({"limit", "after"})
_MESSAGES_QUERY: Final = frozenset({"limit", "after_id", "before_id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A request for one of the routes."""

    scope: Scope
    receive: Receive
    caller: str
    owner: str
    prefix: str
    """What precedes `/v1` in the path."""
    id: str

    @property
    def query(self) -> Mapping[str, str]:
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))


Handler = Callable[["BatchApi", _Asked], Awaitable[Response]]


class BatchApi:
    """The routes as an ASGI application; errors are raised, for the caller to answer."""

    def __init__(self, batches: Batches, *, max_body_bytes: int) -> None:
        """Serve the batches; `max_body_bytes` bounds the body of a batch of messages."""
        self._batches = batches
        self._store = batches.store
        self._max_body_bytes = max_body_bytes
        self._num_uploads = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answer(scope, receive, send, path=scope["path"])

    async def answer(self, scope: Scope, receive: Receive, send: Send, *, path: str) -> None:
        """Answer a request by one of `methods_of` a path, which begins with `/v1`. Raises `HeadraceError`."""
        found = _ROUTE.fullmatch(path)
        assert found is not None
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        caller = caller_of(scope)
        asked = _Asked(
            scope=scope,
            receive=receive,
            caller=caller,
            owner=self._store.owner(caller),
            prefix=scope["path"].removesuffix(path),
            id=found[2] or "",
        )
        response = await _HANDLERS[method, found[1], found[2] is not None, found[3] or ""](self, asked)
        await response(scope, receive, send)

    # Files.

    async def upload(self, asked: _Asked) -> Response:
        if self._num_uploads >= MAX_UPLOADS:
            raise Busy(f"{MAX_UPLOADS} files are being uploaded; expected fewer. Try again in a moment.")
        self._num_uploads += 1
        try:
            if content_length(asked.scope) > files.MAX_FILE_BYTES + (1 << 20):
                raise PayloadTooLarge("The file is larger than 200 MB; expected at most so much. Split it.")
            path = await asyncio.to_thread(self._store.new_upload, asked.owner)
            try:
                file = await self._receive_file(asked, Upload(path=path))
            finally:
                await asyncio.to_thread(path.unlink, missing_ok=True)
        finally:
            self._num_uploads -= 1
        return _json(to_json(files.file_object(file)))

    async def _receive_file(self, asked: _Asked, upload: Upload) -> files.StoredFile:
        await upload.receive(asked.receive, header(asked.scope, b"content-type") or "")
        age_s, now_s = files.read_form(upload.fields), self._batches.clock()
        file = files.StoredFile(
            id=new_id("file-"),
            filename=upload.filename,
            purpose="batch",
            num_bytes=upload.num_bytes,
            created_s=now_s,
            expires_s=now_s + age_s,
        )
        await asyncio.to_thread(self._store.add_file, asked.owner, upload.path, file)
        return file

    async def list_files(self, asked: _Asked) -> Response:
        query = asked.query
        files.check_query(query, _FILE_QUERY)
        paging = Paging(
            limit=files.page_limit(query, default=files.MAX_PAGE, most=files.MAX_PAGE),
            order=files.page_order(query),
            after=query.get("after"),
        )

        def render() -> bytes:
            found, has_more = self._store.files(asked.owner, paging, purpose=query.get("purpose"))
            return files.render_page([files.file_object(file) for file in found], has_more=has_more)

        return _json(await asyncio.to_thread(render))

    async def describe_file(self, asked: _Asked) -> Response:
        file = await asyncio.to_thread(self._store.file, asked.owner, asked.id)
        return _json(to_json(files.file_object(file)))

    async def delete_file(self, asked: _Asked) -> Response:
        await asyncio.to_thread(self._store.delete_file, asked.owner, asked.id)
        return _json(files.render_deleted(asked.id))

    async def file_content(self, asked: _Asked) -> Response:
        file = await asyncio.to_thread(self._store.file, asked.owner, asked.id)
        path = await asyncio.to_thread(self._store.content, asked.owner, asked.id)
        return FileResponse(path, media_type=_FILE_TYPE, filename=file.filename)

    # Batches of OpenAI's API.

    async def create(self, asked: _Asked) -> Response:
        new = openai.parse_create(await self._body(asked, _MAX_BATCH_BODY_BYTES))
        content = await asyncio.to_thread(self._store.content, asked.owner, new.input_file_id)
        batch = self._new_batch(asked, "batch_", new.endpoint)
        batch = replace(batch, input_file_id=new.input_file_id, metadata=new.metadata, output_age_s=new.output_age_s)
        await self._add(asked, batch, content)
        return _json(to_json(openai.batch_object(batch, cancelling_s=None)))

    async def list_batches(self, asked: _Asked) -> Response:
        query = asked.query
        files.check_query(query, _BATCH_QUERY)
        paging = Paging(limit=files.page_limit(query, default=20, most=100), after=query.get("after"))

        def render() -> bytes:
            found, has_more = self._store.batches(asked.owner, paging, is_messages=False)
            return files.render_page([self._object(asked, batch) for batch in found], has_more=has_more)

        return _json(await asyncio.to_thread(render))

    async def describe(self, asked: _Asked) -> Response:
        batch = await self._find(asked, is_messages=False)
        return _json(to_json(await asyncio.to_thread(self._object, asked, batch)))

    async def cancel(self, asked: _Asked) -> Response:
        return await self._cancel(asked, is_messages=False)

    # Batches of Anthropic's API.

    async def create_messages(self, asked: _Asked) -> Response:
        body = await self._body(asked, self._max_body_bytes)
        await asyncio.to_thread(check_json_size, body)
        lines = await asyncio.to_thread(anthropic.parse_create, body)
        path = await asyncio.to_thread(self._store.new_upload, asked.owner)
        batch = self._new_batch(asked, "msgbatch_", MESSAGES)
        batch = replace(batch, total=len(lines))
        try:
            await asyncio.to_thread(_write_lines, path, lines)
            await self._add(asked, batch, path)
        finally:
            await asyncio.to_thread(path.unlink, missing_ok=True)
        return _json(to_json(anthropic.batch_object(batch, cancelling_s=None, base_url=_base_url(asked))))

    async def list_messages(self, asked: _Asked) -> Response:
        query = asked.query
        files.check_query(query, _MESSAGES_QUERY)
        paging = Paging(
            limit=files.page_limit(query, default=20, most=1000),
            after=query.get("after_id"),
            before=query.get("before_id"),
        )

        def render() -> bytes:
            found, has_more = self._store.batches(asked.owner, paging, is_messages=True)
            return anthropic.render_page([self._object(asked, batch) for batch in found], has_more=has_more)

        return _json(await asyncio.to_thread(render))

    async def describe_messages(self, asked: _Asked) -> Response:
        batch = await self._find(asked, is_messages=True)
        return _json(to_json(await asyncio.to_thread(self._object, asked, batch)))

    async def cancel_messages(self, asked: _Asked) -> Response:
        return await self._cancel(asked, is_messages=True)

    async def results(self, asked: _Asked) -> Response:
        batch = await self._find(asked, is_messages=True)
        if batch.status not in ENDED:
            raise anthropic.not_ended(batch, "read its results")
        paths = await asyncio.to_thread(self._store.results, asked.owner, batch.id)
        return StreamingResponse(_in_pieces(anthropic.result_lines(_lines(paths))), media_type=_RESULTS_TYPE)

    async def delete_messages(self, asked: _Asked) -> Response:
        batch = await self._find(asked, is_messages=True)
        if batch.status not in ENDED:
            raise anthropic.not_ended(batch, "delete it")
        await asyncio.to_thread(self._store.delete_batch, asked.owner, batch.id)
        return _json(anthropic.render_deleted(batch.id))

    # What both share.

    async def _body(self, asked: _Asked, max_bytes: int) -> bytes:
        length = content_length(asked.scope)
        try:
            return await read_body(asked.receive, max_bytes=max_bytes, content_length=length)
        except BodyTooLarge as error:
            message = f"The body has {error.num_bytes} bytes or more; expected at most {max_bytes}. Send less."
            raise PayloadTooLarge(message) from None

    def _new_batch(self, asked: _Asked, id_prefix: str, endpoint: str) -> Batch:
        now_s = self._batches.clock()
        return Batch(
            id=new_id(id_prefix),
            endpoint=endpoint,
            input_file_id="",
            created_s=now_s,
            expires_s=now_s + WINDOW_S,
            caller=asked.caller,
            prefix=asked.prefix,
        )

    async def _add(self, asked: _Asked, batch: Batch, content: Path) -> None:
        await asyncio.shield(asyncio.to_thread(self._store.add_batch, asked.owner, batch, content))
        self._batches.changed()

    async def _find(self, asked: _Asked, *, is_messages: bool) -> Batch:
        batch = await asyncio.to_thread(self._store.batch, asked.owner, asked.id)
        if batch.is_messages != is_messages:
            raise openai.no_batch(asked.id)
        return batch

    async def _cancel(self, asked: _Asked, *, is_messages: bool) -> Response:
        batch = await self._find(asked, is_messages=is_messages)
        if batch.status in ENDED:
            raise anthropic.ended_already(batch) if is_messages else openai.ended_already(batch)
        await asyncio.to_thread(self._store.cancel, asked.owner, batch.id)
        self._batches.changed()
        return _json(to_json(await asyncio.to_thread(self._object, asked, batch)))

    def _object(self, asked: _Asked, batch: Batch) -> dict[str, object]:
        """Describe a batch; blocks."""
        cancelling_s = self._store.cancelling_s(asked.owner, batch.id)
        if batch.is_messages:
            return anthropic.batch_object(batch, cancelling_s=cancelling_s, base_url=_base_url(asked))
        return openai.batch_object(batch, cancelling_s=cancelling_s)


_HANDLERS: Final[Mapping[tuple[str, str, bool, str], Handler]] = {
    ("POST", FILES, False, ""): BatchApi.upload,
    ("GET", FILES, False, ""): BatchApi.list_files,
    ("GET", FILES, True, ""): BatchApi.describe_file,
    ("DELETE", FILES, True, ""): BatchApi.delete_file,
    ("GET", FILES, True, "content"): BatchApi.file_content,
    ("POST", BATCHES, False, ""): BatchApi.create,
    ("GET", BATCHES, False, ""): BatchApi.list_batches,
    ("GET", BATCHES, True, ""): BatchApi.describe,
    ("POST", BATCHES, True, "cancel"): BatchApi.cancel,
    ("POST", MESSAGE_BATCHES, False, ""): BatchApi.create_messages,
    ("GET", MESSAGE_BATCHES, False, ""): BatchApi.list_messages,
    ("GET", MESSAGE_BATCHES, True, ""): BatchApi.describe_messages,
    ("DELETE", MESSAGE_BATCHES, True, ""): BatchApi.delete_messages,
    ("POST", MESSAGE_BATCHES, True, "cancel"): BatchApi.cancel_messages,
    ("GET", MESSAGE_BATCHES, True, "results"): BatchApi.results,
}
"""The handlers by method, collection, whether an id follows, and the last part of the path."""


def _routes() -> dict[str, list[str]]:
    routes: dict[str, list[str]] = {}
    for method, place, has_id, action in _HANDLERS:
        path = "".join((place, "/{id}" if has_id else "", f"/{action}" if action else ""))
        routes.setdefault(path, []).append(method)
    return routes


ROUTES: Final = _routes()
"""The paths in Starlette's form, with their methods."""


def methods_of(path: str) -> tuple[str, ...]:
    """Return the methods of a path that begins with `/v1`; none: it is no route of files or batches."""
    found = _ROUTE.fullmatch(path)
    place = found and (found[1], found[2] is not None, found[3] or "")
    return tuple(method for method, *rest in _HANDLERS if tuple(rest) == place)


def _json(body: bytes) -> Response:
    return Response(body, media_type=JSON_CONTENT_TYPE)


def _base_url(asked: _Asked) -> str:
    """Return the address by which the client reached the server: `results_url` is a whole URL."""
    host = header(asked.scope, b"host")
    return f"{asked.scope.get('scheme', 'http')}://{host}{asked.prefix}" if host else asked.prefix


def _write_lines(path: Path, lines: list[bytes]) -> None:
    with path.open("xb") as file:
        file.writelines(lines)


def _lines(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as file:
            yield from file


async def _in_pieces(lines: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield lines as they are read and converted in another thread."""
    while piece := await asyncio.to_thread(lambda: b"".join(islice(lines, _LINES_AT_ONCE))):
        yield piece
