#!/usr/bin/env bash
# Run a file of prompts through the engine with continuous batching, without a server.
#   examples/05-offline-batch/run.sh [MODEL]
set -euo pipefail
cd "$(dirname "$0")"
headrace generate "${1:-smollm2}" --input prompts.jsonl --output "${OUTPUT:-answers.jsonl}" --max-new-tokens 24
cat "${OUTPUT:-answers.jsonl}"
