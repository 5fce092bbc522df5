# bash environments/ray.sh PYTHON: what the tests on a Ray cluster need, for that interpreter.
set -euo pipefail
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
python=$1
# torch goes first and alone: a looser request may resolve to a build of several gigabytes.
pip install -qq "$(grep '^torch==' environments/ray.txt)"
pip install -qq -c constraints-dev.txt -r environments/ray.txt -e .
