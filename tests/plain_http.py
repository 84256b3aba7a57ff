"""
httpx for servers without TLS.

By itself httpx parses all certificates of the certifi package for each request outside a client, and for each client:
some 30 ms of CPU time, which makes polling a server that starts as expensive as the start.
"""

from functools import partial

import httpx

request = partial(httpx.request, verify=False)
get = partial(httpx.get, verify=False)
head = partial(httpx.head, verify=False)
put = partial(httpx.put, verify=False)
post = partial(httpx.post, verify=False)
stream = partial(httpx.stream, verify=False)
Client = partial(httpx.Client, verify=False)
AsyncClient = partial(httpx.AsyncClient, verify=False)
