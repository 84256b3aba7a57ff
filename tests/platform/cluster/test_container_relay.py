"""The front of a worker with several containers on a machine that others reach."""

import httpx

from headrace.platform.cluster.container_header import TARGET_HEADER
from headrace.platform.cluster.container_relay import ContainerRelay
from headrace.serving.http.asgi import Receive, Scope, Send, headers_of, send_response
from tests.platform.host.serving import serving


async def test_all_requests_but_pings_need_the_token_which_containers_do_not_see() -> None:
    async def container(scope: Scope, _receive: Receive, send: Send) -> None:
        await send_response(scope, send, 200, (), ",".join(sorted(headers_of(scope))).encode())

    async def is_ready() -> bool:
        return True

    relay = ContainerRelay(["a"], is_direct=True, is_ready=is_ready, token="secret")
    transport = httpx.ASGITransport(relay)
    with serving(container) as relay.urls["a"]:
        async with httpx.AsyncClient(transport=transport, base_url="http://w", headers={TARGET_HEADER: "a"}) as client:
            assert (await client.get("/ping")).status_code == 200
            for token in ("", "Bearer other", "Bearer \xe9"):
                headers = {"Authorization": token.encode("latin-1")}
                assert (await client.post("/invocations", headers=headers)).status_code == 401
                assert (await client.get("/metrics", headers=headers)).status_code == 401
            answer = await client.post("/invocations", headers={"Authorization": "Bearer secret", "X-Mine": "1"})
            assert answer.status_code == 200
            assert "x-mine" in answer.text
            assert "authorization" not in answer.text
    await relay.close()
