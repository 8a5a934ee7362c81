#!/bin/sh
# Gives the compiler's cache a place that can be written, which it insists on, and becomes the server, so that signals
# reach it. Where even that place cannot be written, the server compiles for half a minute at its start and runs.
mkdir -p "$NUMBA_CACHE_DIR" 2>/dev/null && cp -Rp /opt/tutti/machine-code/. "$NUMBA_CACHE_DIR" 2>/dev/null
# Names one of the two processors that the Dockerfile compiles for. An image that was built on a machine without VNNI
# lacks the code for it: its replicas compile that once, at their first start. Torch's and oneDNN's limits go before.
if [ -z "$NUMBA_CPU_NAME$ATEN_CPU_CAPABILITY$ONEDNN_MAX_CPU_ISA" ]; then
  if grep -q avx512_vnni /proc/cpuinfo; then
    export NUMBA_CPU_NAME=x86-64-v4 NUMBA_CPU_FEATURES=+avx512vnni
  else
    export NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES=
  fi
fi
exec "$@"
