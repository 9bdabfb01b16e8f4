# The rooms: each folder of src/ that is named here is a library, and may include the rooms that it USES and no others;
# tests/check_rooms.sh holds the sources to it, and to using what is declared. Every room uses base. A room inside
# another (offload/schedule) can be used without the outer one. Lowest first; docs/architecture.md says what each holds.
so_room(base LIBRARIES PkgConfig::hwy nlohmann_json::nlohmann_json PkgConfig::hwloc PkgConfig::xxhash)
so_room(device LIBRARIES CUDA)
so_room(ranks COLD LIBRARIES MPI PkgConfig::hwloc)
so_room(data/tokenizer LIBRARIES simdjson::simdjson nlohmann_json::nlohmann_json PkgConfig::pcre2 PkgConfig::utf8proc)
so_room(io COLD USES device LIBRARIES simdjson::simdjson nlohmann_json::nlohmann_json PkgConfig::yaml)
so_room(optim USES device LIBRARIES PkgConfig::hwy CUDA)
so_room(ranks/collectives USES device optim ranks LIBRARIES CUDA)
so_room(data COLD USES io data/tokenizer LIBRARIES simdjson::simdjson nlohmann_json::nlohmann_json)
so_room(offload/schedule USES device optim)
so_room(offload/memory USES device optim offload/schedule)
so_room(offload USES device optim ranks ranks/collectives offload/schedule offload/memory)
so_room(train/frameworks USES device optim ranks offload offload/memory offload/schedule)
# Declared behind offload, so that its test program, which is given the rooms before it, shows that the engine links
# without a model's operations and their libraries.
so_room(ops USES device LIBRARIES so_dnnl PkgConfig::hwy CUDA)
so_room(model APART /families/ USES device ops data data/tokenizer offload/schedule offload/memory
  LIBRARIES nlohmann_json::nlohmann_json)
so_room(plan/machine COLD USES device io ops optim ranks ranks/collectives offload/memory LIBRARIES nlohmann_json::nlohmann_json)
so_room(plan/simulate USES device offload/schedule)
so_room(options COLD USES device io optim ranks/collectives LIBRARIES nlohmann_json::nlohmann_json)
so_room(checkpoint COLD USES data device io optim ranks model offload offload/schedule options LIBRARIES nlohmann_json::nlohmann_json)
so_room(plan/memory COLD USES device ranks model offload offload/schedule offload/memory options checkpoint plan/machine)
so_room(plan/placement USES ops model offload/schedule options plan/machine plan/simulate)
so_room(plan COLD USES data device io ops optim ranks model offload offload/schedule offload/memory options plan/machine plan/memory
  plan/placement)
so_room(doctor COLD USES device ranks io plan/machine LIBRARIES nlohmann_json::nlohmann_json dl)
so_room(commands/report COLD USES io LIBRARIES nlohmann_json::nlohmann_json PkgConfig::microhttpd)
so_room(train COLD USES data device io ops optim ranks model offload offload/schedule options checkpoint plan plan/machine
  plan/memory)
so_room(commands OBJECTS COLD USES data data/tokenizer device io ops optim ranks ranks/collectives model offload offload/schedule offload/memory
  options checkpoint plan plan/machine plan/simulate plan/memory train commands/report doctor
  LIBRARIES CLI11::CLI11 nlohmann_json::nlohmann_json)
