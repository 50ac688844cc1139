#!/usr/bin/env python3
"""Runs a benchmark on small sizes and looks at what it reports; times are only asked to be times.

usage: bench_smoke.py KIND MPIRUN_TEST RANKS PROGRAM [ARGUMENT...]
RANKS: of this host; or of several, as 2+1
KIND: table, idle, training, predict (what the JSON must hold), autotune (the training tunes),
      refused (wrong arguments must fail)
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile


def run(command, **environment):
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100,
                          env=os.environ | environment)


def expect(condition, text):
    if not condition:
        sys.exit(f"bench_smoke: {text}")


def report_of(command, **environment):
    """The JSON that a successful run has written."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "result.json"
        done = run(command + ["--json", str(path)], **environment)
        expect(done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
        names = [entry.name for entry in pathlib.Path(folder).iterdir()]
        expect(names == ["result.json"], f"left files behind: {names}")
        return json.loads(path.read_text(encoding="utf-8")), done.stdout


ONLY_OUT_OF_PLACE = ("allgather", "reducescatter", "alltoall", "gather", "scatter", "barrier")


def check_placement(place, size, peers):
    expect(place["nwrong"] == 0, f"wrong values: {place}")
    # The time of rewriting is subtracted: on a busy machine that may leave nothing of a time.
    expect(0 <= place["time_min"] <= place["time"] <= place["time_p99"], f"no times: {place}")
    expect(place["time"] > 0, f"no times: {place}")
    expect((place["alg_bw"] > 0) == (size > 0) and place["bus_bw"] >= 0, f"no bandwidth: {place}")
    expect(sorted(place.get("peers", {})) == sorted(peers), f"not the peers {peers}: {place}")
    for name, peer in place.get("peers", {}).items():
        quartiles = peer["ratio_quartiles"]
        expect(0 < quartiles[0] <= quartiles[1] <= quartiles[2], f"{name}: {place}")
        expect(peer["time"] >= 0 and peer["ratio"] == quartiles[1], f"{name}: {place}")
        expect(("algorithm" in peer) == (name == "tuned"), f"{name}: {place}")


def check_sizes(config, sizes):
    if config["collective"] == "barrier":
        expect(sizes == [0], f"sizes: {sizes}")
        return
    expect(len(sizes) > 1 and sizes == sorted(sizes) and sizes[0] > 0, f"sizes: {sizes}")


def peers_asked_for(command, output):
    """The peers of the command line, without those that the program says it has left out."""
    if "--peer" not in command:
        return []
    asked = command[command.index("--peer") + 1].split(",")
    return [peer for peer in asked if f"# {peer} is left out: " not in output]


def check_table(command, ranks):
    report, output = report_of(command)
    config = report["config"]
    members = command[command.index("--set") + 1] if "--set" in command else "all"
    ranks = ranks if members == "all" else len(members.split(","))
    expect(config["ranks"] == ranks, f"not {ranks} ranks: {config}")
    expect((config["set"] == "world") == ("--set" not in command), f"not that set: {config}")
    expect(config["check"] and report["wrong"] == 0, "results were not right")
    chosen = [line for line in report["op_chosen"] if line.endswith(": chosen")]
    expect(len(chosen) == 1 and config["collective"] in chosen[0], f"op: {report['op_chosen']}")
    peers = peers_asked_for(command, output)
    expect(config["peers"] == peers, f"not the peers {peers}: {config}")
    sizes = [row["size"] for row in report["results"]]
    check_sizes(config, sizes)
    for row in report["results"]:
        check_placement(row["out_of_place"], row["size"], peers)
        in_place = row["in_place"]
        only_out_of_place = config["collective"] in ONLY_OUT_OF_PLACE
        expect((in_place is None) == only_out_of_place, "in place, or not")
        if in_place is not None:
            check_placement(in_place, row["size"], peers)
    table = [line for line in output.splitlines() if line and not line.startswith("#")]
    expect(len(table) == len(sizes), f"the table should have {len(sizes)} rows:\n{output}")
    expect("# Out of bounds values : 0 OK" in output, output)


def check_json_alone(command, expected_code, expected_error=""):
    """--json -: standard output has nothing else; what a user must know is told beside it."""
    done = run(command + ["--json", "-"])
    expect(done.returncode == expected_code, f"{done.returncode}\n{done.stdout}{done.stderr}")
    expect(isinstance(json.loads(done.stdout), dict), done.stdout)
    expect(expected_error in done.stderr, done.stderr)


def check_idle(command, ranks):
    report, _ = report_of(command)
    expect(len(report["percent_of_a_core"]) == ranks, f"not {ranks} ranks: {report}")
    expect(0 <= report["worst"] <= 100 * ranks, f"no share of a core: {report}")
    check_json_alone(command, 0)
    check_json_alone(command + ["--idle-percent-max", "1e-9"], 1, "# FAILED: above 1e-09 %")


def check_training(command, ranks):
    with tempfile.TemporaryDirectory() as folder:
        report, _ = report_of(command, HORON_TIMELINE=f"{folder}/trace.json")
        trace = pathlib.Path(folder, "trace.rank0.json").read_text(encoding="utf-8")
    has_buckets = ranks > 1 or "--buckets" in command
    expect(("bench.deep.bucket." in trace) == has_buckets, "one rank alone has no buckets")
    expect(report["ranks"] == ranks, f"not {ranks} ranks: {report}")
    tensors = {model["model"]: model["tensors"] for model in report["models"]}
    expect(tensors == {"deep": 402, "tiny": 2000, "cnn": 8}, f"models: {tensors}")
    for model in report["models"]:
        expect(model["ranks_agree"], f"parameters differ between ranks: {model}")
        contenders = {"alone", "alone_fused", "floor", "horon", "horon_fused"}
        contenders |= {"gradients"} if has_buckets else set()
        if "--shard" in command:
            for ending in ("sharded", "sharded_gradients"):
                contenders |= {f"horon_{ending}", f"horon_fused_{ending}"}
        contenders |= {"local_sgd"} if "--local-sgd" in command else set()
        contenders |= {"power_sgd"} if "--power-sgd" in command else set()
        expect(contenders == set(model["block_ms"]), f"contenders: {model}")
        for contender, times in model["block_ms"].items():
            expect(len(times) == report["blocks"] and min(times) > 0, f"{contender}: {model}")
            for ratio in ("ratio_quartiles", "over_floor_quartiles"):
                quartiles = model[ratio][contender]
                expect(0 < quartiles[0] <= quartiles[1] <= quartiles[2], f"{contender}: {model}")
        expect(len(model.get("hidden_quartiles", [])) == 3 * has_buckets, f"hidden: {model}")
        expect(min(model["ratio"], model["floor"], model["over_floor"]) > 0, f"{model}")
    check_what_can_not_be_written(command)


def check_what_can_not_be_written(command):
    done = run(command + ["--json", "/no/such/folder/x.json"])
    refusal = "can't write /no/such/folder/x.json"
    expect(done.returncode != 0 and refusal in done.stderr, done.stderr)
    expect("over a step alone" not in done.stdout, f"it should be refused at once:\n{done.stdout}")
    full = command[:2] + ["sh", "-c", 'exec "$@" > /dev/full', "sh"] + command[2:]
    done = run(full + ["--models", "tiny"])
    expect(done.returncode != 0 and "could not be written to standard output" in done.stderr,
           f"{done.returncode}: {done.stderr}")


def check_autotune(command, ranks):
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "tuning.csv"
        done = run(command, HORON_AUTOTUNE="1", HORON_AUTOTUNE_LOG=str(log),
                   HORON_AUTOTUNE_STEPS="2", HORON_AUTOTUNE_SAMPLES="3")
        expect(done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
        expect(f"{ranks} ranks" in done.stdout, done.stdout)
        rows = log.read_text(encoding="utf-8").splitlines()
        expect(sum(",search," in row for row in rows) == 3, "\n".join(rows) + done.stdout)
    expect("horon_fused" not in done.stdout, f"steps of two kinds are tuned as one\n{done.stdout}")


def check_predict(command, ranks):
    report, output = report_of(command)
    expect(report["ranks"] == ranks, f"not {ranks} ranks: {report}")
    for key in ("this_job", "network"):
        prediction = report[key]
        alone_ms = report["rehearsal"]["alone_ms"]
        expect(prediction["step_ms"] > 0.999 * alone_ms, f"faster than a step alone: {prediction}")
        expect(prediction["buckets"] == 12, f"44.7 MB in buckets of 4 MiB: {prediction}")
        expect(prediction["bytes_per_us"] > 0 and prediction["latency_us"] >= 0, str(prediction))
    # 44.7 MB on a cable of 1 Gbit/s.
    rehearsal = report["rehearsal"]
    expect(376 < report["network"]["step_ms"] < 376 + 2 * rehearsal["alone_ms"], f"{report}")
    expect(rehearsal["alone_ms"] > 0 and rehearsal["step_ms"] > 0, f"no times: {rehearsal}")
    expect(output.count("\nstep ") == 2, output)


def check_refused(command, ranks):
    on_one_rank = {
        "--predict 44.7M --alone-ms 1": "--network",
        "--predict 44.7M --alone-ms 1 --network 4,10,0 --rehearse": "--rehearse",
    }
    # A few of the arguments in the test of the options, and all faults that only a job can find.
    wrong = on_one_rank if ranks == 1 else {
        "--no-such-option": "no-such-option",
        "-d float31": "float31",
        "-d bool -o avg": "average",
        "--set 0,7": "rank 7",
        "--collective broadcast -r 1 --set 0": "rank 1",
        "--collective broadcast -r 7": "rank 7",
        "--predict 44.7M": "--alone-ms",
        "--network 4,10,0": "--predict",
        # Gloo has no reducescatter, in no build. The limit is for the peer that is named first.
        "-e 8 --collective reducescatter --peer gloo --ratio-max 1000": "gloo, which is left out",
        "-e 8 --collective reducescatter --set 0,1 --peer gloo,mpi --ratio-max 1000":
            "gloo, which is left out",
        "-e 8 --collective reducescatter --peer gloo": "no --peer is left to compare with",
        "-b 2G -e 2G -d int8 --peer mpi": "mpi is left out: mpi counts in 32 bits",
        "-b 2G -e 2G --collective broadcast --peer tuned": "no --peer is left to compare with",
        "--idle 0.1 --peer mpi --ratio-max 2": "--idle compares nothing",
        "--idle 0.1 --set 0,1": "--set is for collectives",
        "-e 8 --json /no/such/folder/x.json": "/no/such/folder",
    }
    for arguments, expected in wrong.items():
        done = run(command + arguments.split())
        expect(done.returncode != 0, f"{arguments} should fail:\n{done.stdout}")
        said = (done.stdout + done.stderr).lower()
        expect(expected in said, f"{arguments} should say {expected}:\n{said}")
        if "--json" in arguments:
            expect("busbw" not in said, f"{arguments} should be refused at once:\n{said}")
    if ranks > 1:
        small = [*command, "-b", "4", "-e", "4", "-n", "2", "-w", "1"]
        check_json_alone([*small, "--peer", "mpi", "--ratio-max", "1e-9"], 1,
                         "# FAILED: ratio above 1e-09")
        check_json_alone([*small, "--peer", "mpi,gloo", "--collective", "reducescatter"], 0,
                         "# gloo is left out: ")


def main():
    kind, *command = sys.argv[1:]
    checks = {"table": check_table, "idle": check_idle, "training": check_training,
              "autotune": check_autotune, "predict": check_predict, "refused": check_refused}
    checks[kind](command, sum(int(ranks) for ranks in command[1].split("+")))


if __name__ == "__main__":
    main()
