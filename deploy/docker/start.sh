#!/bin/sh
# Copies the compiler's cache to a writable folder, which it requires, and replaces itself by the server, so that signals
# reach it. If that folder is not writable either, the server compiles for half a minute at its start and runs.
mkdir -p "$NUMBA_CACHE_DIR" 2>/dev/null && cp -Rp /opt/tutti/machine-code/. "$NUMBA_CACHE_DIR" 2>/dev/null
# Selects the best processor that the image was compiled for (model/prebuilt/image.py) and that this machine matches. Without
# one the server compiles for this machine at its start. Torch's and oneDNN's limits take precedence.
has() {
  for flag; do grep -qw "$flag" /proc/cpuinfo || return 1; done
}
if [ -z "$NUMBA_CPU_NAME$ATEN_CPU_CAPABILITY$ONEDNN_MAX_CPU_ISA" ]; then
  case $(uname -m) in
  x86_64)
    if has avx2 bmi2 fma avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni; then
      export NUMBA_CPU_NAME=x86-64-v4 NUMBA_CPU_FEATURES=+avx512vnni
    elif has avx2 bmi2 fma; then
      export NUMBA_CPU_NAME=x86-64-v3 NUMBA_CPU_FEATURES=
    fi
    ;;
  aarch64) export NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES= ;;
  esac
fi
# Amazon SageMaker starts every image with the argument `serve`.
if [ "$1" = serve ]; then
  export TUTTI_SAGEMAKER="${TUTTI_SAGEMAKER:-true}"
  set -- tutti "$@"
fi
exec "$@"
