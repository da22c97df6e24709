#!/usr/bin/env bash
# Fills .gpu/ in a checkout with what has to be carried to a machine that has a GPU and no network. Run it in the
# checkout's root, after `make install`:
#
#     bash tests/gpu/prepare.sh                  # some minutes, most of them for compressing vLLM
#     bash tests/gpu/prepare.sh --without-vllm
#
# A second run downloads nothing, and packs again only what has changed. README.md says what to do then. What is carried
# for one run has at most MOST_SHARE_MIB (40), and MOST_TREE_MIB (64) with the checkout's own files.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
vllm=0.32.0
mib=$((1 << 20))
most_share=$((${MOST_SHARE_MIB:-40} * mib)) most_tree=$((${MOST_TREE_MIB:-64} * mib))

grep -q '^name = "repl-rl"' pyproject.toml 2>/dev/null || { echo "run this in the root of a checkout of repl_rl" >&2; exit 1; }
mkdir -p .gpu/cache .gpu/build .gpu/vllm

export PIP_ROOT_USER_ACTION=ignore
platforms=(--only-binary=:all: --python-version 3.12 --implementation cp)
for n in 39 38 37 36 35 34 33 32 31 28 27 26 24 17 12 5; do platforms+=(--platform "manylinux_2_${n}_x86_64"); done
platforms+=(--platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64)
pip=(nice -n 10 python3 -m pip --disable-pip-version-check --quiet)
quiet() { "$@" 2> >(grep -v -E "Location .* is ignored|running pip as the 'root' user|notice" >&2); }
stale() { # TARGET SOURCE...: whether TARGET is missing or older than a source
  local target=$1 source; shift
  [ -e "$target" ] || return 0
  for source in "$@"; do [ "$source" -nt "$target" ] && return 0; done
  return 1
}

packages() { # LIST FOLDER: the wheels of LIST, as they lie in site-packages
  echo "  downloading the wheels of $(basename "$1")"
  quiet "${pip[@]}" download --no-deps "${platforms[@]}" -d .gpu/cache -r "$1"
  rm -rf "$2"
  mkdir -p "$2"
  quiet "${pip[@]}" install --no-index --find-links .gpu/cache --no-deps --no-compile "${platforms[@]}" --target "$2" -r "$1"
  rm -rf "$2/bin" "$2/share" "$2/etc"
}

echo "packages of repl_rl"
if stale .gpu/site.tar.xz "$here/wheels.txt" "$here/pack.py" "$here/../vocabularies.py"; then
  packages "$here/wheels.txt" .gpu/build/site/site-packages
  PYTHONPATH="$here/.." nice -n 10 .venv/bin/python -W ignore -c "
from vocabularies import qwen
tokenizer = qwen().tokenizer
tokenizer.pad_token, tokenizer.chat_template = tokenizer.eos_token, None
tokenizer.save_pretrained('.gpu/build/site/qwen')"
  nice -n 10 python3 "$here/pack.py" .gpu/build/site .gpu/site.tar.xz
fi

rm -rf .gpu/kit
cp -r "$here/kit" .gpu/kit
find .gpu/kit -name __pycache__ -type d -prune -exec rm -rf {} +
bytes() { du -cb "$@" | tail -n 1 | cut -f 1; }
# The checkout is carried for every run; what is left of the first one goes to vLLM's first part.
tree=$(git ls-files -z --cached --others --exclude-standard | xargs -0 -r du -cb 2>/dev/null | awk '$2 == "total" {sum += $1} END {print sum + 0}')
first_mib=$(python3 -c "
left = min($most_share, $most_tree - $tree) - $(bytes .gpu/kit .gpu/site.tar.xz)
print(f'{max(1, min(38, left / $mib - 0.5)):.1f}')")

if [ "${1:-}" = --without-vllm ]; then
  rm -f .gpu/vllm/part-*
else
  echo "vLLM $vllm"
  sources=("$here"/{vllm-wheels.txt,pack.py,pack_vllm.py,slim_fatbin.py} .gpu/site.tar.xz)
  if stale .gpu/vllm/part.json "${sources[@]}"; then
    packages "$here/vllm-wheels.txt" .gpu/build/vllm/site-packages
    quiet "${pip[@]}" download --no-deps "${platforms[@]}" -d .gpu/cache "vllm==$vllm"
    nice -n 10 python3 "$here/pack_vllm.py" .gpu/cache/vllm-"$vllm"-*.whl .gpu/build/vllm/site-packages
    echo "  compressing"
    nice -n 10 python3 "$here/pack.py" .gpu/build/vllm .gpu/vllm/part "$first_mib"
  fi
  cp .gpu/vllm/part.json .gpu/kit/part.json
fi
rm -rf .gpu/build

echo
printf '%-58s %8.1f MiB\n' "the checkout, for every run" "$(python3 -c "print($tree / $mib)")"
bad=0
call() { # NAME PATH...
  local name=$1; shift
  local share; share=$(bytes "$@")
  printf '%-58s %8.1f MiB, with the tree %.1f\n' "$name: carry $(printf '"%s" ' "$@")" \
    "$(python3 -c "print($share / $mib)")" "$(python3 -c "print(($share + $tree) / $mib)")"
  if [ "$share" -gt "$most_share" ]; then echo "  more than $((most_share / mib)) MiB: leave something out" >&2; bad=1; fi
  if [ $((share + tree)) -gt "$most_tree" ]; then echo "  more than $((most_tree / mib)) MiB with the tree: it would be refused" >&2; bad=1; fi
}
parts=(.gpu/vllm/part-[0-9][0-9])
if [ -e "${parts[0]}" ]; then
  call "run 1" .gpu/kit .gpu/site.tar.xz "${parts[0]}"
  number=2
  for part in "${parts[@]:1}"; do call "run $number" .gpu/kit "$part"; number=$((number + 1)); done
else
  call "run 1" .gpu/kit .gpu/site.tar.xz
fi
exit $bad
