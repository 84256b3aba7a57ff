"""nginx with the configuration of the guide to production, without its TLS."""

import re
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from common import PLATFORM, SERVER
from proxied import free_port, guide_block, run_steps, started

_FRAME = """
daemon off;
pid {folder}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    {servers}
}}
"""


def server_block(port: int, target: str) -> str:
    text = re.sub(r"(?m)^ *(ssl_\w+|server_name) .*\n", "", guide_block("nginx"))
    text = text.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    return re.sub(r"proxy_pass http://[^;]+;", f"proxy_pass http://{urlsplit(target).netloc};", text)


server, platform = free_port(), free_port()
with tempfile.TemporaryDirectory() as folder:
    servers = server_block(server, SERVER) + server_block(platform, PLATFORM)
    configuration = Path(folder, "nginx.conf")
    configuration.write_text(_FRAME.format(folder=folder, servers=servers), encoding="utf-8")
    with started(["-c", str(configuration)], server):
        run_steps(f"http://127.0.0.1:{server}", f"http://127.0.0.1:{platform}")
