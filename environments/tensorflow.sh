# bash environments/tensorflow.sh PYTHON: what the TensorFlow tests need, for that interpreter.
set -euo pipefail
"$1" -m pip --disable-pip-version-check install -qq \
    -c constraints-dev.txt -r environments/tensorflow.txt -e .
