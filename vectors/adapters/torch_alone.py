"""For functions of torch that know no packing: each prompt of a row alone, and the row made of
them, with gradients by autograd. What lies on two prompts' paths must come out the same."""

import torch

OF_NO_TOKEN = ("A", "weight", "bias")


def alone(function, inputs, d):
    """out, final_states, and grad_NAME of each input. inputs: name -> array (T, ...), or one that
    is no token's. function: takes them as tensors with a batch of one, and the state to begin with
    (or None); returns out (1, tokens, ...) and the last state. d: dtype, parents, ends, grad_out,
    and where documents begin with a state begins and initial_states, else None."""
    T, dtype = len(d["parents"]), getattr(torch, d["dtype"])
    if d["begins"] is not None:
        inputs = inputs | {"initial_states": d["initial_states"]}
    leaves = {n: torch.tensor(x).to(dtype) for n, x in inputs.items()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    outs, states = {}, []
    for end in d["ends"]:
        path = [int(end)]
        while d["parents"][path[0]] >= 0:
            path.insert(0, int(d["parents"][path[0]]))
        initial = None
        if "initial_states" in leaves:
            initial = leaves["initial_states"][d["begins"][path[0]]][None]
        given = {}
        for name, x in leaves.items():
            if name != "initial_states":
                given[name] = x[path][None] if name not in OF_NO_TOKEN else x
        out, state = function(**given, initial=initial)
        states.append(state[0])
        for place, t in enumerate(path):
            outs.setdefault(t, out[0, place])
    nothing = torch.zeros_like(next(iter(outs.values())))
    out = torch.stack([outs.get(t, nothing) for t in range(T)])
    seed = torch.tensor(d["grad_out"]).to(out.dtype)
    found = torch.autograd.grad(out, list(leaves.values()), seed)
    grads = {f"grad_{n}": x.double().numpy() for n, x in zip(leaves, found, strict=True)}
    results = {"out": out, "final_states": torch.stack(states)}
    return {n: x.detach().double().numpy() for n, x in results.items()} | grads
