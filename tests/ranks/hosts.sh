#!/bin/sh
# Trains on two hosts, which are network namespaces of this machine, with MPI over TCP between them, and compares the
# model with that of as many ranks of one host, byte by byte. Exit code 77: skipped, since the machine does not permit it.
# usage: hosts.sh PROGRAM FIXTURE   with FIXTURE/model and FIXTURE/data.jsonl
set -eu
program=$1 fixture=$2
skip() {
  echo "skipped: $1"
  exit 77
}
command -v mpirun >/dev/null 2>&1 || skip "there is no mpirun on this machine (Debian: openmpi-bin)"
command -v ip >/dev/null 2>&1 || skip "there is no ip on this machine (Debian: iproute2)"
[ "$(id -u)" = 0 ] || skip "only root may make network namespaces"

name=so$$
work=$(mktemp -d)
# shellcheck disable=SC2317  # trap calls it
clean_up() {
  for host in 1 2; do ip netns del "$name-$host" 2>/dev/null || true; done
  rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM HUP
for host in 1 2; do
  ip netns add "$name-$host" 2>/dev/null || skip "network namespaces are not permitted here"
done
ip link add "${name}a" netns "$name-1" type veth peer name "${name}b" netns "$name-2" 2>/dev/null ||
  skip "pairs of network devices are not permitted here"
unshare --uts true 2>/dev/null || skip "names of hosts are not permitted here"
ip -n "$name-1" address add 10.77.0.1/24 dev "${name}a"
ip -n "$name-2" address add 10.77.0.2/24 dev "${name}b"
ip -n "$name-1" link set "${name}a" up
ip -n "$name-2" link set "${name}b" up
for host in 1 2; do ip -n "$name-$host" link set lo up; done

# mpirun calls it as it would call ssh.
cat >"$work/agent" <<END
#!/bin/sh
address=\$1
shift
exec ip netns exec "$name-\${address##*.}" unshare --uts sh -c "hostname so-host-\${address##*.}; \$*"
END
chmod +x "$work/agent"
on_two_hosts() {
  each=$1
  shift
  "$work/agent" 10.77.0.1 timeout 200 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun \
    --mca plm_rsh_agent "$work/agent" --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 \
    --mca oob_tcp_if_include 10.77.0.0/24 --bind-to none --oversubscribe -n $((2 * each)) \
    --host "10.77.0.1:$each,10.77.0.2:$each" "$@" 2>"$work/log" || {
    cat "$work/log"
    exit 1
  }
}
train() {
  echo train --model "$fixture/model" --data "$fixture/data.jsonl" --cache_dir "$work/cache" --device cpu \
    --dtype fp32 --batch_size 2 --max_steps 6 --save_steps 3 --lr 1e-3 --output_dir "$work/$1"
}

status=0
for each in 1 2; do
  # shellcheck disable=SC2046  # words
  on_two_hosts "$each" "$program" $(train "two-$each")
  # shellcheck disable=SC2046
  "$program" $(train "one-$each") --gpus $((2 * each)) 2>"$work/log" || {
    cat "$work/log"
    exit 1
  }
  for file in model.safetensors checkpoint-6/exp_avg_sq.safetensors; do
    if ! cmp "$work/two-$each/$file" "$work/one-$each/$file"; then status=1; fi
  done
done
on_two_hosts 2 "$program" bench step --config "$fixture/model" --device cpu --batch_size 1 --max_length 32 --steps 1 \
  --warmup 0 --breakdown false --json >"$work/step"
hosts=$(grep -oE '"rank":[0-9]+,"host":[0-9]+' "$work/step" | cut -d: -f3 | tr '\n' ' ')
if [ "$hosts" != "0 0 1 1 " ]; then
  echo "the ranks are on these hosts: $hosts" >&2
  status=1
fi
exit $status
