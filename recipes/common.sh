# shellcheck shell=sh
# What the recipes beside this have in common; each calls
#   finetune NAME MODEL_ID GPUS "$@"
# NAME: of the output; MODEL_ID: the model on huggingface.co; GPUS: for how many the recipe was published.

recipes=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

refuse() {
  printf '%s: %s\n' "$(basename -- "$0")" "$1" >&2
  exit 2
}

usage() {
  cat <<TEXT
usage: [MODEL_DIR=DIR] DATA=FILE $(basename -- "$0") superoffload|zerooffload [BATCH_SIZE] [OPTION...]

Fine-tunes all parameters of $model_id, published for $gpus GPU(s), in bf16 with activation checkpointing. The
mode says when the CPU steps its share of the optimizer: superoffload, beside the GPU's work; zerooffload, after
backward. BATCH_SIZE is in rows of each GPU and 4 unless given. Options are those of superoffload train: --dry_run says what would
be done and whether it fits, --resume goes on. superoffload bench step --config $model_id measures steps of random tokens.

superoffload doctor says what the machine costs and how to mend it; on a superchip docs/superchips.md goes first.

MODEL_DIR     the model's directory, or its name on the Hugging Face hub; $model_id unless given, which has to be
              in the Hugging Face cache: hf download $model_id
DATA          records to train on: Alpaca's JSON, a data set of the hub (tatsu-lab/alpaca) or what docs/data.md lists
OUTPUT_DIR    where the trained model goes; ${name}_MODE_output unless given. The DeepSpeed JSON lies beside it
MAX_LENGTH    longest sequence in tokens; 4096 unless given
MICRO_BATCHES in how many micro-batches the BATCH_SIZE rows of a step go, which takes less memory; 1 unless given
GPUS          GPUs of this host to train on, a process each; $gpus unless given. More than one need Open MPI and NCCL
SUPEROFFLOAD  the program; that of this tree or installation, or the one in PATH, unless given
TEXT
}

find_program() {
  if [ -n "${SUPEROFFLOAD:-}" ]; then
    command -v "$SUPEROFFLOAD" || refuse "SUPEROFFLOAD=$SUPEROFFLOAD is no program"
  elif [ -x "$recipes/../build/bin/superoffload" ]; then
    printf '%s\n' "$recipes/../build/bin/superoffload"
  elif [ -x "$recipes/../../../bin/superoffload" ]; then # installed: PREFIX/share/superoffload/recipes
    printf '%s\n' "$recipes/../../../bin/superoffload"
  else
    command -v superoffload ||
      refuse "no superoffload: build it (cmake -S . -B build -G Ninja && cmake --build build), or set SUPEROFFLOAD"
  fi
}

# The share of the optimizer that stays on the GPU ("ratio") is left to the program, which measures and chooses it.
deepspeed_config() {
  super_offload=false
  [ "$mode" = zerooffload ] || super_offload=true
  cat <<JSON
{
  "train_batch_size": $((batch_size * ranks)),
  "gradient_accumulation_steps": $micro_batches,
  "bf16": { "enabled": true },
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {
      "device": "cpu",
      "pin_memory": true,
      "super_offload": $super_offload
    }
  },
  "wall_clock_breakdown": true
}
JSON
}

finetune() {
  name=$1 model_id=$2 gpus=$3
  shift 3
  case ${1:-} in
    superoffload | zerooffload) mode=$1 ;;
    -h | --help) usage && exit 0 ;;
    *) usage >&2 && refuse "the first argument is superoffload or zerooffload, not '${1:-}'" ;;
  esac
  shift
  batch_size=4
  case ${1:-} in
    '' | -*) ;;
    *[!0-9]* | 0*) refuse "the batch size '$1' is not a positive number of rows" ;;
    *) batch_size=$1 && shift ;;
  esac
  model=${MODEL_DIR:-$model_id}
  if [ -d "$model" ] && [ ! -f "$model/config.json" ]; then
    refuse "MODEL_DIR=$model holds no config.json: it is no model directory"
  fi
  [ -n "${DATA:-}" ] || refuse "set DATA to records to train on, as a file, or a data set of the hub: tatsu-lab/alpaca"
  ranks=${GPUS:-$gpus}
  case $ranks in
    *[!0-9]* | 0*) refuse "GPUS=$ranks is no number of GPUs" ;;
  esac
  micro_batches=${MICRO_BATCHES:-1}
  case $micro_batches in
    *[!0-9]* | 0*) refuse "MICRO_BATCHES=$micro_batches is no number of micro-batches" ;;
  esac
  [ $((batch_size % micro_batches)) -eq 0 ] ||
    refuse "MICRO_BATCHES=$micro_batches: the $batch_size rows of a step do not go into so many equal parts"
  output=${OUTPUT_DIR:-${name}_${mode}_output}
  output=${output%/}
  program=$(find_program) || exit 2

  mkdir -p "$(dirname -- "$output")"
  config=${output}_deepspeed.json
  deepspeed_config >"$config"
  exec "$program" train --gpus "$ranks" --model "$model" --data "$DATA" --output_dir "$output" --deepspeed_config "$config" \
    --batch_size $((batch_size / micro_batches)) --max_length "${MAX_LENGTH:-4096}" --activation_checkpointing --num_train_epochs 1 \
    --lr 1e-5 --warmup 0.05 --weight_decay 0.01 --seed 42 --log_interval 1 "$@"
}
