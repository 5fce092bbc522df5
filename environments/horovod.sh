# bash environments/horovod.sh PYTHON: what the Horovod tests need, for that interpreter.
set -euo pipefail
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
python=$1
# torch goes first and alone: a looser request may resolve to a build of several gigabytes.
pip install -qq "$(grep '^torch==' environments/horovod.txt)"
pip install -qq -c constraints-dev.txt -r environments/horovod.txt -e .
echo "setup: building Horovod, which takes some minutes"
"$python" scripts/install_horovod.py --quick
