#!/bin/sh
# make_venv.sh PYTHON FOLDER: a virtual environment that sees the torch of PYTHON, if it has one.
set -eu
if "$1" -c 'import torch' 2>/dev/null; then
    exec "$1" -m venv --system-site-packages "$2"
fi
exec "$1" -m venv "$2"
