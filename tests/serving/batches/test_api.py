"""The routes of files and batches, as OpenAI's and Anthropic's clients use them."""

import json

import pytest

from headrace.core.errors import PayloadTooLarge
from headrace.serving.batches.upload import Upload
from headrace.testing.echo import EchoScript
from tests.waiting import WAIT_S

from .conftest import URL, line_of, lines_of, serving_batches

SLOW = EchoScript(delay_s=0.05)


async def test_openais_client_runs_a_batch_from_the_file_to_its_results(tmp_path):
    import httpx2
    import openai

    async with serving_batches(tmp_path / "batches") as server:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app), timeout=WAIT_S)
        async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="-", http_client=http) as client:
            content = lines_of(5) + b"\n" + line_of("bad", "a", temperature=-1) + line_of("last", "one two").rstrip()
            file = await client.files.create(
                file=("in.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
            )
            created = await client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"team": "a"},
                output_expires_after={"anchor": "created_at", "seconds": 7200},
            )
            await server.ended(created.id)
            batch = await client.batches.retrieve(created.id)
            listed = [found.id async for found in client.batches.list(limit=1)]
            output = await client.files.retrieve(batch.output_file_id)
            text = (await client.files.content(batch.output_file_id)).text
            by_purpose = [found.id async for found in client.files.list(purpose="batch_output", order="asc", limit=1)]
            deleted = await client.files.delete(file.id)
            with pytest.raises(openai.NotFoundError, match="No such File object"):
                await client.files.content(file.id)
        errors = await server.results(batch.error_file_id)

    assert (file.bytes, file.filename, file.purpose, file.expires_at - file.created_at) == (
        len(content),
        "in.jsonl",
        "batch",
        3600,
    )
    assert (created.status, batch.status, batch.metadata, batch.model) == (
        "validating",
        "completed",
        {"team": "a"},
        "echo",
    )
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (7, 6, 1)
    assert batch.created_at <= batch.in_progress_at <= batch.finalizing_at <= batch.completed_at < batch.expires_at
    assert batch.usage.output_tokens == 6 * 3
    assert batch.usage.total_tokens > batch.usage.input_tokens > 0
    results = {result["custom_id"]: result["response"] for result in map(json.loads, text.splitlines())}
    assert results["r3"]["body"]["choices"][0]["message"]["content"] == "word 3"
    assert results.keys() == {"r0", "r1", "r2", "r3", "r4", "last"}
    assert output.expires_at - output.created_at == 7200
    assert errors["bad"]["response"]["status_code"] == 400
    assert errors["bad"]["response"]["body"]["error"]["param"] == "temperature"
    assert (listed, deleted.deleted) == ([batch.id], True)
    assert sorted(by_purpose) == sorted([batch.output_file_id, batch.error_file_id])
    assert all(request.is_background for request in server.backend.requests)


async def test_anthropics_client_runs_a_batch_of_messages(tmp_path):
    import anthropic
    import httpx2

    params = {"model": "echo", "max_tokens": 8, "messages": [{"role": "user", "content": "hello there"}]}
    requests = [{"custom_id": "a", "params": params}, {"custom_id": "b", "params": {**params, "messages": []}}]
    async with serving_batches(tmp_path / "batches") as server:
        http = httpx2.AsyncClient(transport=httpx2.ASGITransport(server.app), base_url=URL, timeout=WAIT_S)
        async with anthropic.AsyncAnthropic(base_url=URL, api_key="-", http_client=http) as client:
            batches = client.messages.batches
            batch = created = await batches.create(requests=requests)
            while batch.processing_status != "ended":
                batch = await batches.retrieve(created.id)
            results = {result.custom_id: result.result async for result in await batches.results(batch.id)}
            other = await batches.create(requests=requests)
            pages = [
                [found.id for found in (await batches.list(limit=1, **cursor)).data]
                for cursor in ({}, {"after_id": other.id}, {"before_id": batch.id}, {"before_id": other.id})
            ]
            deleted = await batches.delete(batch.id)
            with pytest.raises(anthropic.NotFoundError):
                await batches.retrieve(batch.id)
        foreign = await server.http.get(f"/v1/batches/{other.id}")

    assert (created.processing_status, created.request_counts.processing) == ("in_progress", 2)
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 1)
    assert batch.ended_at >= batch.created_at
    assert results["a"].message.content[0].text == "hello there"
    assert "at least one message" in results["b"].error.error.message
    assert pages == [[other.id], [batch.id], [other.id], []]
    assert (deleted.type, foreign.status_code) == ("message_batch_deleted", 404)


async def test_a_cancelled_batch_keeps_what_is_answered_and_names_the_rest(tmp_path):
    async with serving_batches(tmp_path / "batches", max_concurrent_requests=4) as server:
        batch = await server.create(lines_of(200))
        server.backend.script = SLOW
        await server.until(batch["id"], lambda now: now["status"] == "in_progress")
        cancelling = (await server.http.post(f"/v1/batches/{batch['id']}/cancel")).json()
        ended = await server.ended(batch["id"])
        output = await server.results(ended["output_file_id"])
        errors = await server.results(ended["error_file_id"])
        again = await server.http.post(f"/v1/batches/{batch['id']}/cancel")
    assert (cancelling["status"], ended["status"]) == ("cancelling", "cancelled")
    assert cancelling["cancelling_at"] <= ended["cancelled_at"]
    assert (len(output) + len(errors), len(output)) == (200, ended["request_counts"]["completed"])
    assert {result["error"]["code"] for result in errors.values()} == {"batch_cancelled"}
    assert (again.status_code, again.json()["error"]["message"]) == (
        400,
        "Cannot cancel a batch with status 'cancelled'.",
    )


async def test_a_batch_goes_on_after_a_restart_with_each_request_answered_once(tmp_path):
    async with serving_batches(tmp_path / "batches", script=SLOW, max_concurrent_requests=8) as server:
        batch = await server.create(lines_of(30))
        await server.until(batch["id"], lambda _: len(server.backend.requests) > 8)
    async with serving_batches(tmp_path / "batches") as server:
        ended = await server.ended(batch["id"])
        output = await server.results(ended["output_file_id"])
        assert 0 < len(server.backend.requests) < 30
    assert (ended["status"], ended["error_file_id"], len(output)) == ("completed", None, 30)
    assert ended["usage"]["output_tokens"] == 30 * 3


async def test_a_file_with_wrong_lines_fails_its_batch_with_their_numbers(tmp_path):
    async with serving_batches(tmp_path / "batches") as server:
        batch = await server.create(line_of("a", "x") + b"\n{\n" + line_of("a", "x"))
        failed = await server.ended(batch["id"])
    assert (failed["status"], failed["output_file_id"], failed["request_counts"]["total"]) == ("failed", None, 0)
    assert [(error["code"], error["line"]) for error in failed["errors"]["data"]] == [
        ("invalid_json_line", 3),
        ("duplicate_custom_id", 4),
    ]
    assert server.backend.requests == []


async def test_no_key_sees_what_another_one_owns(tmp_path):
    async with serving_batches(tmp_path / "batches") as server:
        batch = await server.create(lines_of(1))
        await server.ended(batch["id"])
        other = {"headers": {"caller": "../_"}}
        answers = [
            await server.http.get(f"/v1/files/{batch['input_file_id']}", **other),
            await server.http.get(f"/v1/files/{batch['input_file_id']}/content", **other),
            await server.http.delete(f"/v1/files/{batch['input_file_id']}", **other),
            await server.http.get(f"/v1/batches/{batch['id']}", **other),
            await server.http.post(f"/v1/batches/{batch['id']}/cancel", **other),
            await server.http.post(
                "/v1/batches",
                json={
                    "input_file_id": batch["input_file_id"],
                    "endpoint": "/v1/completions",
                    "completion_window": "24h",
                },
                **other,
            ),
            *[
                await server.http.get(f"/v1/files/{name}/content")
                for name in ("..%2f..%2flock", "%2e%2e", "file-1.json", "a" * 300)
            ],
        ]
        lists = [(await server.http.get(path, **other)).json()["data"] for path in ("/v1/files", "/v1/batches")]
    assert {answer.status_code for answer in answers} == {404}
    assert lists == [[], []]


@pytest.mark.parametrize(
    ("data", "files", "status", "said"),
    [
        ({"purpose": "batch"}, {"other": ("a", b"")}, 400, "field 'other'"),
        ({"purpose": "batch", "file": "text"}, None, 400, "expected multipart/form-data"),
        ({"purpose": "vision"}, {"file": ("a", b"x")}, 400, "Expected 'batch'"),
        ({}, {"file": ("a", b"x")}, 400, "'purpose'"),
        ({"purpose": "b" * 2000}, {"file": ("a", b"x")}, 400, "more than 1024 bytes"),
    ],
)
async def test_wrong_uploads_are_refused_and_leave_nothing(tmp_path, data, files, status, said):
    async with serving_batches(tmp_path / "batches") as server:
        answer = await server.http.post("/v1/files", data=data, files=files)
        listed = (await server.http.get("/v1/files")).json()["data"]
    assert (answer.status_code, listed) == (status, [])
    assert said in answer.json()["error"]["message"]
    assert list((tmp_path / "batches" / "uploads").iterdir()) == []


async def test_a_full_folder_takes_no_more_files(tmp_path):
    async with serving_batches(tmp_path / "batches", batch_bytes=1000) as server:
        first = await server.upload(b"x" * 2000)
        second = await server.upload(b"x")
        await server.http.delete(f"/v1/files/{first.json()['id']}")
        third = await server.upload(b"x")
    assert [answer.status_code for answer in (first, second, third)] == [200, 413, 200]
    assert "batch_bytes" in second.json()["error"]["message"]


async def test_lists_are_cut_into_pages_and_unknown_parameters_are_refused(tmp_path):
    async with serving_batches(tmp_path / "batches") as server:
        ids = [(await server.upload(b"x")).json()["id"] for _ in range(3)]
        page = (await server.http.get("/v1/files", params={"limit": 2})).json()
        rest = (await server.http.get("/v1/files", params={"limit": 2, "after": page["last_id"]})).json()
        wrong = [
            await server.http.get("/v1/files", params=query)
            for query in ({"limit": 0}, {"order": "up"}, {"before": "x"})
        ]
    assert ([file["id"] for file in page["data"]], page["has_more"]) == ([ids[2], ids[1]], True)
    assert ([file["id"] for file in rest["data"]], rest["has_more"]) == ([ids[0]], False)
    assert {answer.status_code for answer in wrong} == {400}


async def test_another_server_of_the_model_reads_the_folder_and_takes_nothing(tmp_path):
    async with serving_batches(tmp_path / "batches") as server:
        file = (await server.upload(b"x")).json()
        async with serving_batches(tmp_path / "batches") as second:
            refused = await second.upload(b"x")
            read = await second.http.get(f"/v1/files/{file['id']}")
    async with serving_batches(tmp_path / "batches") as third:
        taken = await third.upload(b"x")
    assert (refused.status_code, read.status_code, taken.status_code) == (503, 200, 200)
    assert "set batch_folder" in refused.json()["error"]["message"]


async def test_wrong_methods_are_named_and_reading_writes_nothing(tmp_path):
    async with serving_batches(tmp_path / "batches") as server:
        wrong = await server.http.patch("/v1/files/file-1")
        late = await server.http.get("/v1/messages/batches/msgbatch_1/results")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "DELETE, GET, HEAD")
    assert (late.status_code, late.json()["type"]) == (404, "error")
    assert not (tmp_path / "batches").exists()


async def test_a_file_that_is_too_long_is_refused_while_it_arrives(tmp_path):
    head = b'--x\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    parts = iter([head, *[b"y" * 1_000_000] * 4])

    async def receive():
        return {"type": "http.request", "body": next(parts), "more_body": True}

    upload = Upload(path=tmp_path / "file", max_bytes=2_500_000)
    with pytest.raises(PayloadTooLarge, match="at most"):
        await upload.receive(receive, "multipart/form-data; boundary=x")
    assert len(list(parts)) == 1
    assert (tmp_path / "file").stat().st_size <= 2_500_000
