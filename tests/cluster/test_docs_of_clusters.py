"""The recipes for clusters in docs/clusters.md, checked as text: job script, pod spec, numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from dask.utils import parse_bytes, parse_timedelta

from retok_dask.cluster import isolation, trouble
from retok_dask.cluster.settings import MALLOC, judge_settings

PAGE = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_slurm_job_script():
    from dask_jobqueue import SLURMCluster

    text = next(block for block in blocks("python") if "SLURMCluster" in block)
    compile(text, "docs", "exec")
    call = re.search(r"SLURMCluster\((.*?)\n    \)", text, re.DOTALL)[1]
    settings = eval(f"dict({call})")  # our own page
    cluster = SLURMCluster(**settings, scheduler_options={"dashboard": False, "host": "127.0.0.1"})
    script = cluster.job_script()
    cluster.close()
    assert "#SBATCH -p cpu" in script
    assert "#SBATCH --cpus-per-task=16" in script
    assert "#SBATCH -t 04:00:00" in script
    assert "#SBATCH --nice=100" in script
    assert "export OMP_NUM_THREADS=1 RAYON_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false" in script
    assert "export " + " ".join(f"{name}={value}" for name, value in MALLOC.items()) in script
    worker = next(line for line in script.splitlines() if "dask_worker" in line or "dask worker" in line)
    assert "--nthreads 1" in worker
    assert "--nworkers 16" in worker
    assert "--nanny" in worker
    lifetime = parse_timedelta(re.search(r"--lifetime (\S+)", worker)[1])
    assert lifetime < 4 * 3600 - 300
    assert parse_bytes(re.search(r"--memory-limit (\S+)", worker)[1]) > 3.9 * 2**30


def test_the_kubernetes_spec():
    spec = yaml.safe_load(blocks("yaml")[0])
    assert (spec["apiVersion"], spec["kind"]) == ("kubernetes.dask.org/v1", "DaskCluster")
    worker = spec["spec"]["worker"]["spec"]["containers"][0]
    args = worker["args"]
    assert args[:2] == ["dask", "worker"]
    assert args[args.index("--nthreads") + 1] == "1"
    limit = parse_bytes(args[args.index("--memory-limit") + 1])
    assert limit < parse_bytes(worker["resources"]["limits"]["memory"])
    assert worker["resources"]["limits"]["memory"] == worker["resources"]["requests"]["memory"]
    scheduler = spec["spec"]["scheduler"]["spec"]["containers"][0]
    assert scheduler["image"] == worker["image"]
    env = {item["name"]: item["value"] for item in scheduler["env"] + worker["env"]}
    config = {
        "distributed.scheduler.worker-ttl": env["DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL"],
        "distributed.scheduler.allowed-failures": int(env["DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES"]),
        "distributed.worker.memory.terminate": float(env["DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE"]),
    }
    assert judge_settings(config, 120) == []
    kept = {item["name"]: item["value"] for item in worker["env"] if item["name"].startswith("MALLOC_")}
    assert kept == MALLOC
    ports = {port["name"]: port["port"] for port in spec["spec"]["scheduler"]["service"]["ports"]}
    assert ports["tcp-comm"] == 8786


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("a unit is tried (six) times", trouble.STORAGE_TRIES),
        ("(five) units in a row", trouble.FAILURES_IN_A_ROW),
        ("after (three) searches", isolation.ROUNDS),
        (r"one\s+worker for each halving and (two) for the record", isolation.STRIKES),
    ],
)
def test_numbers_in_words_are_those_of_the_code(words, value):
    named = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
    assert named[re.search(words, PAGE)[1]] == value
