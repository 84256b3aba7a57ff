"""Caddy with the configuration of the guide to production, without its TLS."""

import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from common import PLATFORM, SERVER
from proxied import free_port, guide_block, run_steps, started

server, platform = free_port(), free_port()
text = guide_block("caddy")
for name, port in (("llm.example.com", server), ("sagemaker.example.com", platform)):
    text = text.replace(name, f"http://127.0.0.1:{port}")
for default, target in (("127.0.0.1:8080", SERVER), ("127.0.0.1:7450", PLATFORM)):
    text = text.replace(f"reverse_proxy {default}", f"reverse_proxy {urlsplit(target).netloc}")
with tempfile.TemporaryDirectory() as folder:
    configuration = Path(folder, "Caddyfile")
    configuration.write_text("{\n    admin off\n}\n" + text, encoding="utf-8")
    with started(["run", "--config", str(configuration), "--adapter", "caddyfile"], server):
        run_steps(f"http://127.0.0.1:{server}", f"http://127.0.0.1:{platform}")
