# bash environments/ui.sh PYTHON: what the tests in a browser need, for that interpreter.
set -euo pipefail
python=$1
"$python" -m pip --disable-pip-version-check install -qq \
    -c constraints-dev.txt -r environments/ui.txt -e ".[ui]"
if ! command -v chromium >/dev/null; then
    echo "setup: installing Chromium with apt-get"
    as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null ||
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium-browser >/dev/null
fi
command -v chromium || command -v chromium-browser
