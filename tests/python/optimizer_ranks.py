"""Cases of test_ranks_optimizer.py, run by each of its processes: optimizer_ranks.py RANK PROCESSES FILE. As torchrun
does, it sets LOCAL_RANK and LOCAL_WORLD_SIZE.
"""
import os
import sys
import traceback
import warnings

import torch
from torch import distributed, nn
from torch.distributed.checkpoint import state_dict as checkpoints
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import superoffload
from optimizer_models import DEVICE, STEP, backward, difference, groups_of, same_bits

FULL = checkpoints.StateDictOptions(full_state_dict=True)


def network(mesh, width=31, seed=1):
    """One whose shards differ in size, and of some of whose parameters the last process has none."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, width), nn.GELU(), nn.Linear(width, 1), nn.Tanh(), nn.Linear(1, 7))
    model.to(DEVICE)
    if mesh is None:
        return model
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def seed_of(step, number=0):
    return 1000 * distributed.get_rank() + 10 * step + number  # each has data of its own


def shards(model):
    return [p.to_local().clone() for p in model.parameters()]


def full(model):
    return [p.full_tensor() if isinstance(p, DTensor) else p.detach().clone() for p in model.parameters()]


def far(one, other):
    return max((p - q).abs().max().item() for p, q in zip(full(one), full(other)))


def sharded_against_torch(mesh):
    for passes, max_norm in ((1, 0.0), (3, 0.02)):
        ours, theirs = network(mesh), network(mesh)
        mine = superoffload.AdamW(groups_of(ours), lr=1e-3, max_grad_norm=max_norm)
        other = torch.optim.AdamW(groups_of(theirs), lr=1e-3)
        for step in range(8):
            for number in range(passes):
                for model in (ours, theirs):
                    backward(model, seed_of(step, number), 1 / passes)
            norm = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm or float("inf")).full_tensor().item()
            if step == 4:  # of all processes, too
                assert abs(nn.utils.clip_grad_norm_(ours.parameters(), 1e9).item() - norm) < 1e-5 * norm
            mine.step()
            other.step()
            assert abs(mine.grad_norm - norm) < 1e-5 * norm, (mine.grad_norm, norm)
            for optimizer in (mine, other):
                optimizer.zero_grad()
            assert far(ours, theirs) < (step + 1) * STEP, (step, far(ours, theirs))
        assert (mine.counters()["clipped_steps"] > 0) == (max_norm > 0)


def no_order_changes_a_bit(mesh):
    results = []
    for settings in (
        {"overlap": False},
        {},
        {"under_forward": True},
        {"under_forward": True, "update_over_link": True},
    ):
        model = network(mesh)
        optimizer = superoffload.AdamW(groups_of(model), lr=1e-2, max_grad_norm=0.05, **settings)
        for step in range(8):
            backward(model, seed_of(step))
            assert model[0].weight.grad is None  # it leaves as it is reduced
            scale = float("nan") if step == 5 and distributed.get_rank() == 1 else 1.0
            backward(model, seed_of(step, 1), scale)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                optimizer.step()
            assert any("is Inf or NaN" in str(w.message) for w in caught) == (step == 5)
        assert optimizer.skipped_steps == 1
        state = optimizer.state_dict()["state"]
        results.append([shards(model), [s["exp_avg_sq"].to_local() for s in state.values() if "exp_avg_sq" in s]])
    assert all(same_bits(results[0], result) for result in results[1:])


def checkpoints_are_torchs(mesh):
    ours, theirs = network(mesh), network(mesh)
    mine, other = superoffload.AdamW(ours.parameters(), lr=1e-3), torch.optim.AdamW(theirs.parameters(), lr=1e-3)
    for step in range(3):
        for model, optimizer in ((ours, mine), (theirs, other)):
            backward(model, seed_of(step))
            optimizer.step()
            optimizer.zero_grad()
    whole, its = (checkpoints.get_optimizer_state_dict(m, o, options=FULL) for m, o in ((ours, mine), (theirs, other)))
    assert whole["state"].keys() == its["state"].keys()
    for name, state in whole["state"].items():
        assert state["step"] == 3
        for key in ("exp_avg", "exp_avg_sq"):
            assert state[key].shape == its["state"][name][key].shape
            assert (state[key] - its["state"][name][key]).abs().max() < STEP, (name, key)
    # Each goes on from the other's, ours from a whole one and from one in shards, one of an unsharded run included.
    sharded = checkpoints.get_optimizer_state_dict(theirs, other)
    unsharded = {"state": dict(enumerate(its["state"].values())), "param_groups": other.state_dict()["param_groups"]}
    models, optimizers = [theirs], [other]
    for number, state in enumerate((its, sharded, unsharded, whole)):
        model = network(mesh, seed=5)
        kind = torch.optim.AdamW if number == 3 else superoffload.AdamW
        optimizer = kind(model.parameters(), lr=1e-3)
        weights = checkpoints.get_model_state_dict(theirs, options=FULL)
        checkpoints.set_model_state_dict(model, weights, options=FULL)
        if state is unsharded:
            optimizer.load_state_dict(state)
        else:
            options = None if state is sharded else FULL
            checkpoints.set_optimizer_state_dict(model, optimizer, state, options=options)
        models.append(model)
        optimizers.append(optimizer)
    for model, optimizer in zip(models, optimizers):
        backward(model, seed_of(9))
        optimizer.step()
        assert far(model, models[0]) < 2 * STEP, far(model, models[0])


def replicated(mesh):
    """DistributedDataParallel adds up gradients after they were accumulated."""
    for view in (False, True):
        ours, theirs = (nn.parallel.DistributedDataParallel(network(None), gradient_as_bucket_view=view) for _ in "ab")
        mine = superoffload.AdamW(groups_of(ours), lr=1e-3, max_grad_norm=0.5)
        other = torch.optim.AdamW(groups_of(theirs), lr=1e-3)
        for step in range(5):
            for model in (ours, theirs):
                with model.no_sync():
                    backward(model, seed_of(step), 0.5)
                backward(model, seed_of(step, 1), 0.5)
            norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5).item()
            mine.step()
            other.step()
            other.zero_grad()
            assert abs(mine.grad_norm - norm) < 1e-5 * norm
            assert difference(ours, theirs) < (step + 1) * STEP
        every = [torch.empty(0)] * distributed.get_world_size()
        distributed.all_gather_object(every, [p.cpu() for p in full(ours)])  # from two GPUs
        assert all(same_bits(every[0], one) for one in every)


def moved_before_it_is_replicated(mesh):
    """As Accelerate prepares a model, on the CPU too, where a device with an index makes copies."""
    ours, theirs = network(None), network(None)
    mine, other = superoffload.AdamW(groups_of(ours), lr=1e-3), torch.optim.AdamW(groups_of(theirs), lr=1e-3)
    former = [p.detach() for p in ours.parameters()]
    ours, theirs = (m.to(torch.device("cpu", 0) if DEVICE.type == "cpu" else DEVICE) for m in (ours, theirs))
    if DEVICE.type == "cpu":
        assert all(p.data_ptr() != q.data_ptr() for p, q in zip(ours.parameters(), former))
    before = [p.clone() for p in former]
    ours, theirs = (nn.parallel.DistributedDataParallel(model) for model in (ours, theirs))
    mine.load_state_dict(mine.state_dict())
    for step in range(3):
        for model, optimizer in ((ours, mine), (theirs, other)):
            backward(model, seed_of(step))
            optimizer.step()
            optimizer.zero_grad()
        assert difference(ours, theirs) < (step + 1) * STEP
    if DEVICE.type == "cpu":
        assert all(map(torch.equal, before, former))  # that memory may be others' by now
    del ours, theirs, mine


def refusals(mesh):
    def refused(parameters, text):
        try:
            superoffload.AdamW(parameters)
        except superoffload.UserError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"not refused: {text}")

    def spread(mesh, *placements):
        return nn.Parameter(distribute_tensor(torch.ones(4, 4, device=DEVICE), mesh, placements))

    square = init_device_mesh(DEVICE.type, (distributed.get_world_size(), 1))
    refused([spread(mesh, Shard(0)), nn.Parameter(torch.ones(3, device=DEVICE))], "is a whole tensor, and parameter 0")
    refused([spread(square, Shard(0), Shard(1))], "is for fully_shard over one dimension of a mesh")
    refused([spread(mesh, Shard(0)), spread(square, Shard(0), Replicate())], "each mesh and way")
    refused([spread(mesh, Shard(0)), spread(mesh, Replicate())], "each mesh and way")
    one = nn.Parameter(distribute_tensor(torch.ones(1, device=DEVICE), mesh, [Shard(0)]))
    refused([one], "no element of any parameter" if distributed.get_rank() else "cannot be made on rank 1 of its group")
    superoffload.AdamW([spread(square, Replicate(), Shard(0))])  # as of hybrid sharding


def main():
    rank, processes, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    torch.set_num_threads(1)
    # Objects travel by gloo either way.
    backends = "cpu:gloo,cuda:nccl" if DEVICE.type == "cuda" else "gloo"
    distributed.init_process_group(backends, init_method=f"file://{file}", rank=rank, world_size=processes)
    mesh = init_device_mesh(DEVICE.type, (processes,))
    for case in (
        sharded_against_torch,
        no_order_changes_a_bit,
        checkpoints_are_torchs,
        replicated,
        moved_before_it_is_replicated,
        refusals,
    ):
        try:
            case(mesh)
        except BaseException:
            traceback.print_exc()
            print(f"FAILED {case.__name__} on rank {rank}", flush=True)
            os._exit(1)  # the others wait for this process
        if rank == 0:
            print(f"passed {case.__name__}", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
