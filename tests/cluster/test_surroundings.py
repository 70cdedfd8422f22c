"""What lies around a run: cores, links, settings, versions, the main guard, and how clusters end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from distributed import Client, LocalCluster

from retok_dask.cluster import read_events, run
from retok_dask.cluster.connect import connect
from retok_dask.cluster.doctor import doctor, websocket_answers
from retok_dask.cluster.links import answers, proxied
from retok_dask.cluster.resources import usable_cores, usable_memory
from retok_dask.cluster.settings import judge_allocator, judge_settings, own_settings
from retok_dask.cluster.versions import Versions, check_versions
from retok_dask.datasets import OutputFolder
from retok_dask.errors import ClusterError

# cores and memory


@pytest.fixture
def cgroup(tmp_path):
    def write(**files):
        for name, text in files.items():
            (tmp_path / name.replace("__", ".")).write_text(text)
        return tmp_path

    return write


def test_cores_follow_a_quota(cgroup):
    assert usable_cores(cgroup(cpu__max="150000 100000\n")) == 1
    assert usable_cores(cgroup(cpu__max="50000 100000\n")) == 1
    assert usable_cores(cgroup(cpu__max="max 100000\n")) == len(os.sched_getaffinity(0))


def test_cores_follow_affinity():
    code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); from retok_dask.cluster.resources import usable_cores; print(usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_memory_follows_a_limit(cgroup):
    assert usable_memory(cgroup(memory__max=f"{2**30}\n")) == 2**30
    assert usable_memory(cgroup(memory__max="max\n")) == psutil.virtual_memory().total


# links


@pytest.mark.parametrize(
    ("link", "environ", "shown"),
    [
        ("http://127.0.0.1:8788/status", {"JUPYTERHUB_SERVICE_PREFIX": "/user/jane/"}, "/user/jane/proxy/8788/status"),
        ("http://127.0.0.1:8788/status", {}, "http://127.0.0.1:8788/status"),
        ("http://127.0.0.1:1/status", {"NB_PREFIX": "/notebook/a/b"}, "/notebook/a/b/proxy/1/status"),
        ("http://head:8787/status", {"JUPYTERHUB_SERVICE_PREFIX": "/user/j/"}, "/user/j/proxy/head:8787/status"),
        ("", {"JUPYTERHUB_SERVICE_PREFIX": "/user/j/"}, ""),
    ],
)
def test_links_go_through_the_proxy_where_there_is_one(link, environ, shown):
    """A hub's reader cannot reach 127.0.0.1: https://github.com/dask/distributed/issues/6736"""
    assert proxied(link, environ) == shown


# settings


def test_settings_of_ours_pass_our_own_judgement(make_recipe):
    assert judge_settings(own_settings(make_recipe()), 120) == []


def test_settings_that_hurt_are_named():
    config = {
        "distributed.scheduler.worker-ttl": "30s",
        "distributed.scheduler.allowed-failures": 100,
        "distributed.worker.memory.terminate": False,
    }
    found = {item.name: item for item in judge_settings(config, 120)}
    assert set(found) == set(config)
    assert "240s or more" in found["distributed.scheduler.worker-ttl"].wanted


@pytest.mark.parametrize(
    ("environ", "slow"),
    [
        ({}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "65536"}, True),
        ({"MALLOC_TRIM_THRESHOLD_": "67108864"}, True),
        ({"MALLOC_TRIM_THRESHOLD_": "67108864", "MALLOC_MMAP_THRESHOLD_": "4194304"}, False),
    ],
)
def test_an_allocator_that_keeps_nothing_is_named(environ, slow):
    """Setting the trim threshold alone ends glibc's own search for the other: https://man7.org/linux/man-pages/man3/mallopt.3.html"""
    assert bool(judge_allocator(environ)) is slow


# clusters of ours


def test_dashboard_is_on_loopback_and_a_taken_port_is_no_trouble(make_recipe):
    """The link has the real port: https://github.com/dask/distributed/issues/6736"""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with connect(make_recipe(cluster={"workers": 1, "dashboard": f":{port}"})) as client:
            link = client.dashboard_link
            assert link.startswith("http://127.0.0.1:")
            assert f":{port}/" not in link
            assert answers(link)
            assert websocket_answers(link)
            listening = {c.laddr.ip for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN"}
            assert listening == {"127.0.0.1"}
            found = {finding.name: finding.ok for finding in doctor(client=client).findings}
            assert found["dashboard link"] is True
            assert found["worker allocator"] is True


SCRIPT = """
import sys
{before}
from retok_dask.recipe import Recipe
from retok_dask.cluster import connect
recipe = Recipe.from_dict({{"tokenizer": "t", "output": "o", "datasets": [{{"input": "x"}}], "cluster": {{"workers": 2, "dashboard": {dashboard}}}}})
def main():
    with connect(recipe) as client:
        print("link", client.dashboard_link, client.submit(sum, [1, 2]).result(), flush=True)
        pids = client.run(__import__("os").getpid)
        print("pids", *pids.values(), flush=True)
        {body}
{start}
"""


def script(tmp_path, *, before="", dashboard="None", body="pass", guard=True) -> Path:
    start = 'if __name__ == "__main__":\n    main()' if guard else "main()"
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.format(before=before, dashboard=dashboard, body=body, start=start))
    return path


def test_no_bokeh_no_dashboard_no_trouble(tmp_path):
    """No failure without a dashboard: https://github.com/dask/distributed/issues/6736"""
    path = script(tmp_path, before="sys.modules['bokeh'] = None", dashboard="':0'")
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert " 3\n" in done.stdout


def test_a_script_without_main_guard_is_told_so_and_ends(tmp_path):
    """Clusters within clusters: https://github.com/dask/distributed/issues/5726"""
    path = script(tmp_path, guard=False)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert done.stderr.count("__name__ == '__main__'") == 1
    assert "script.py, line" in done.stderr


def test_a_child_of_an_unguarded_script_ends_silently(tmp_path):
    # a script that cannot be read here: the second line of defence
    path = tmp_path / "script.py"
    path.write_text(
        "import multiprocessing as mp, os\n"
        "from retok_dask.cluster.local import refuse_unguarded_script\n"
        "os.environ.setdefault('RETOK_CLUSTER_OF', str(os.getpid()))\n"
        "refuse_unguarded_script() if __name__ == '__mp_main__' else None\n"
        "if __name__ == '__main__':\n"
        "    child = mp.get_context('spawn').Process(target=print)\n"
        "    child.start(); child.join(); print('child', child.exitcode)\n"
    )
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert "child 1" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, "exception", "os._exit"])
def test_no_worker_outlives_its_client(tmp_path, how):
    body = {"exception": "1 / 0", "os._exit": "__import__('os')._exit(3)"}.get(how, "__import__('time').sleep(100)")
    # a shell's background jobs, such as these tests may be, are born deaf to it
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    path = script(tmp_path, body=body, before=listen)
    child = subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    workers: list[psutil.Process] = []
    for line in child.stdout:
        if line.startswith("pids"):
            workers = [psutil.Process(int(pid)) for pid in line.split()[1:]]
            break
    assert len(workers) == 2
    if how is signal.SIGINT:  # as a terminal does: to every process of the group
        os.killpg(child.pid, how)
    elif isinstance(how, signal.Signals):
        child.send_signal(how)
    code = child.wait(timeout=120)
    _, said = child.communicate(timeout=60)
    assert code != 0
    assert "Worker" not in said
    if how is signal.SIGTERM:
        assert code == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive


# versions


def other_versions():
    """Make this worker say that it has other libraries."""
    from importlib.metadata import version

    import retok_dask.datasets.fingerprint as room

    room.version = lambda name: "0.0.1" if name in {"tokenizers", "pyarrow"} else version(name)


def test_other_versions_on_a_worker_are_refused_with_a_table(make_recipe, monkeypatch):
    """More than a warning: https://github.com/dask/distributed/issues/7017"""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert check_versions(client).workers == 2
        odd = next(iter(client.scheduler_info(n_workers=-1)["workers"]))
        client.run(other_versions, workers=[odd])
        with pytest.raises(ClusterError, match="install the same environment") as caught:
            check_versions(client)
        text = str(caught.value)
        assert "tokenizers" in text
        assert "0.0.1" in text
        assert odd in text
        findings = {f.name: f for f in doctor(client=client).findings}
        assert findings["worker versions"].ok is False
        assert "0.0.1" in findings["worker versions"].text
        # one that comes when the others have been asked refuses by itself: it never does a unit
        recipe = make_recipe()
        monkeypatch.setattr(sys.modules[run.__module__], "check_versions", lambda client: Versions({}, 2))
        with pytest.raises(ClusterError, match="install the same environment") as caught:
            run(recipe, client=client, progress="none")
        assert odd in str(caught.value)
        assert "tokenizers" in str(caught.value)
        done = read_events(OutputFolder(recipe.output), kinds=("unit",))
        assert odd not in {event["worker"] for event in done}


def test_doctor_looks_at_everything(make_recipe, tmp_path):
    with LocalCluster(n_workers=1, threads_per_worker=1, memory_limit="2GiB", dashboard_address=None) as cluster:
        found = doctor(make_recipe(), scheduler=cluster.scheduler_address)
    names = [finding.name for finding in found.findings]
    for name in (
        "versions",
        "tokenizer and template",
        "input",
        "output",
        "scheduler",
        "workers",
        "worker memory",
        "settings",
    ):
        assert name in names
    assert found.passed, found.to_text()
    assert list((tmp_path / "out").rglob("probe*")) == []
    assert "ok " in found.to_text()
    bad = doctor(make_recipe(tokenizer={"path": str(tmp_path / "missing.json")}), scheduler="tcp://127.0.0.1:9")
    assert not bad.passed
    assert {f.name for f in bad.findings if f.ok is False} == {"tokenizer and template", "scheduler"}


def test_a_client_that_is_closed_is_refused(make_recipe):
    with LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        client = Client(cluster, set_as_default=False)
        client.close()
        with pytest.raises(ClusterError, match="closed"), connect(make_recipe(), client):
            pass
