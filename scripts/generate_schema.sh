#!/bin/sh
# Write .cog/openapi_schema.json with the real cog CLI (go install github.com/replicate/cog/cmd/cog).
# The CLI writes the schema before it builds an image; that the build itself fails where no Docker
# engine runs does not matter here.
set -u
cd "$(dirname "$0")/.." || exit 1
command -v cog >/dev/null || { echo "The cog CLI is not on PATH." >&2; exit 1; }
before=$(stat -c %Y.%i .cog/openapi_schema.json 2>/dev/null)
cog build -f cog.cpu.yaml
if [ "$(stat -c %Y.%i .cog/openapi_schema.json 2>/dev/null)" = "$before" ]; then
    echo "The CLI did not write .cog/openapi_schema.json." >&2
    exit 1
fi
echo "Wrote .cog/openapi_schema.json"
