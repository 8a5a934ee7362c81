#!/bin/sh
# Copies the compiler's cache to a writable folder, which it requires, and replaces itself by the server, so that signals
# reach it. If that folder is not writable either, the server compiles for half a minute at its start and runs.
mkdir -p "$NUMBA_CACHE_DIR" 2>/dev/null && cp -Rp /opt/tutti/machine-code/. "$NUMBA_CACHE_DIR" 2>/dev/null
# Selects one of the two targets that the Dockerfile compiles for. An image built on a machine without VNNI lacks the code
# for it, which its replicas compile at their first start. Torch's and oneDNN's limits take precedence.
if [ -z "$NUMBA_CPU_NAME$ATEN_CPU_CAPABILITY$ONEDNN_MAX_CPU_ISA" ]; then
  if grep -q avx512_vnni /proc/cpuinfo; then
    export NUMBA_CPU_NAME=x86-64-v4 NUMBA_CPU_FEATURES=+avx512vnni
  else
    export NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES=
  fi
fi
exec "$@"
