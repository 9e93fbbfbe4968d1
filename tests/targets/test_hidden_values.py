"""Secrets in variables and arguments: never in events, reports or manifests."""

from __future__ import annotations

import re

import pytest

from seatrial.errors import RequestError
from seatrial.targets.hidden_values import find_secret_argument, is_secret, shown_environment, shown_launcher_arguments
from seatrial.targets.job import ProgramJob
from seatrial.targets.kubernetes.manifest import parse
from seatrial.targets.option import retyped
from seatrial.targets.registry import TARGETS

SECRET_NAMES = [
    *("HF_TOKEN", "GIT_TOKENS", "AWS_SECRET_ACCESS_KEY", "wandb_api_key", "APIKEY", "KEY", "PGPASSWORD", "DB_PASS"),
    *("GOOGLE_APPLICATION_CREDENTIALS", "MYSQL_PWD", "GITHUB_PAT", "AUTH", "SSHKEY", "DOCKER_AUTH_CONFIG", "BEARER"),
    *("AZURE_STORAGE_CONNECTION_STRING", "SESSION_COOKIE", "SLURM_JWT", "SENTRY_DSN", "PRIVATE_KEY", "awsSecretKey"),
    *("API_KEY1", "HF_TOKEN2", "DB_PASS2", "ACCESSKEY2", "hfToken3", "HFTOKEN2"),
    *("dbPassword", "SSH_PRIVATE_KEY", "ACCESSKEY", "CLIENT_SECRET", "AZURE_SAS", "SLACK_WEBHOOK", "KEY_PASSPHRASE"),
]
_LIST = ("--mca", "mca_base_env_list")
_ENV_LIST = "NCCL_DEBUG=INFO;LOGIN=(hidden)"
HARMLESS_NAMES = [
    *("MONKEY", "KEYBOARD", "TOKENIZERS_PARALLELISM", "PATH", "PWD", "AUTHOR", "NCCL_IB_PKEY", "COMPASS", "HYDRA"),
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_reports_and_manifests_have_one_list_of_secret_names(name: str) -> None:
    assert is_secret(name)
    with pytest.raises(RequestError, match=re.escape(f"--env {name}=...: its value would be readable in the manifest")):
        parse.environment({name: "hunter2"})


@pytest.mark.parametrize("name", ["OMPI_MCA_mca_base_env_list", "PMIX_MCA_mca_base_env_list", "OMPI_MCA_x"])
@pytest.mark.parametrize("value", ["DB_PASSWORD=hunter2;A=b", "NCCL_DEBUG=INFO|LOGIN=hunter2", "LOGIN=hunter2"])
def test_a_list_of_variables_in_a_harmless_one_is_hidden(name: str, value: str) -> None:
    assert shown_environment({name: value}) == {name: "(hidden)"}


def test_settings_in_the_value_of_a_harmless_variable_are_shown() -> None:
    shown = {
        "KMP_AFFINITY": "granularity=fine,compact,1,0",
        "OMPI_MCA_mca_base_env_list": "NCCL_DEBUG=INFO;OMP_NUM_THREADS=4",
    }
    shown |= {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1", "OMPI_MCA_rmaps_base_mapping_policy": "ppr:1:node:PE=2"}
    assert shown_environment(shown) == shown
    assert shown_environment({"KMP_X": "granularity=fine,password=hunter2"}) == {"KMP_X": "(hidden)"}


@pytest.mark.parametrize(
    "value",
    [
        *("a b TOKEN=hunter2", "--foo --password hunter2", "-genv API_KEY hunter2", "password: hunter2"),
        *("a|PASSWORD=hunter2", "PATH+DB_PASSWORD=hunter2", "a\nAPI_KEY='hunter2 x'", '{"api_key": "hunter2"}'),
    ],
)
def test_a_setting_with_a_secret_name_is_hidden_wherever_it_stands(value: str) -> None:
    assert shown_environment({"TORCH_X": value}) == {"TORCH_X": "(hidden)"}
    assert "hunter2" not in str(shown_launcher_arguments(["--prolog", value, f"--comment={value}"]))


@pytest.mark.parametrize(
    "value",
    [
        *("/opt/secrets:/opt/my-cookies/lib:/usr/lib", "--set --password-file /run/secrets/x --max-tokens 9"),
        *(
            "debug_level=2 pin=yes",
            "+dynamo,inductor",
            "mlx5_0:1,mlx5_1:1",
            "expandable_segments:True",
            "the key on a b",
        ),
        *("KEY_DIM=64", "--token_size 9", "ppr:1:node:PE=2", "secret", "https://h/secret?x=1"),
    ],
)
def test_values_without_a_secret_stay(value: str) -> None:
    assert shown_environment({"TORCH_X": value}) == {"TORCH_X": value}


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_names_that_only_look_secret_are_none(name: str) -> None:
    assert not is_secret(name)
    assert parse.environment({name: "x"}) == {name: "x"}


@pytest.mark.parametrize(
    "told",
    [
        *("SSH_AUTH_SOCK=/run/user/0/keyring", "WANDB_API_KEY_FILE=/run/secrets/wandb", "TOKEN_FILE=~/.token"),
        *("GOOGLE_APPLICATION_CREDENTIALS=/x/key.json", "HF_HUB_DISABLE_IMPLICIT_TOKEN=1", "MAX_TOKENS=4096"),
        *("KEY_DIM=64", "TOKEN_COUNT=9", "TORCH_COMPILE_PASS=True", "RUN_ID=0123456789abcdef0123456789abcdef"),
        *("COMMIT=da39a3ee5e6b4b0d3255bfef95601890afd80709", "USER=a@b.c", "GIT_REF=git@github.com:x/y"),
        *("HF_HOME=/hf_cache/hf_x", "MODEL=hf_small", "NODE=sk-1-2", "X=Bearer"),
    ],
)
def test_a_path_a_number_and_a_switch_are_no_secrets(told: str) -> None:
    assert not is_secret(*told.split("=", 1))


@pytest.mark.parametrize(
    "value",
    [
        f"ghp_{'a1' * 18}",
        f"github_pat_{'a1' * 20}",
        f"hf_{'aB' * 17}",
        f"sk-proj-{'a1' * 20}",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc",
        "Authorization: Bearer abc",
        "-----BEGIN OPENSSH PRIVATE KEY-----",
    ],
)
def test_a_value_that_is_a_token_by_its_form(value: str) -> None:
    assert is_secret("FOO", value)
    assert find_secret_argument(["--foo", value]) == "(hidden)"
    assert find_secret_argument([f"--foo={value}"]) == "--foo"


@pytest.mark.parametrize("name", ["HFTOKEN", "ghtoken", "DB_PW"])
def test_a_name_without_a_separator(name: str) -> None:
    assert is_secret(name, "x")


def test_a_manifest_takes_no_url_with_a_password() -> None:
    with pytest.raises(RequestError, match=re.escape("--env DATABASE=...: its value")) as raised:
        parse.environment({"DATABASE": "postgres://u:hunter2/w@h"})
    assert "hunter2" not in str(raised.value)


def program(*args: str, watched: bool = False) -> ProgramJob:
    return ProgramJob(
        run="x",
        target="local",
        nodes=1,
        nproc_per_node=1,
        device="cpu",
        backend="auto",
        python="p",
        env={},
        argv=("python", "train.py"),
        args=args,
        watched=watched,
        output="all",
        max_restarts=0,
        stop_grace_s=1.0,
        cwd="/",
    )


def test_events_have_the_options_of_a_script_and_no_value() -> None:
    words = ("--lr=0.1", "--hub_token", "hunter2", "hunter2", "--url=db://u:hunter2@h", "-phunter2", "KEY=hunter2")
    shown = program(*words).to_json()["argv"]
    assert "hunter2" not in str(shown)
    assert shown[:4] == ["python", "train.py", "--lr=(hidden)", "--hub_token"]
    assert program("SPEC", watched=True).to_json()["argv"] == ["python", "train.py", "SPEC"], "ours"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--lr=0.1", "--api-key", "x"], "--api-key"),
        (["--hub_token=x"], "--hub_token"),
        (["--dbPassword", "x"], "--dbPassword"),
        (["--token", "x"], "--token"),
        (["--db=pg://u:p@h"], "--db"),
        (["pg://u:p/w@h"], "(hidden)"),
        (["+wandb.api_key=x"], "+wandb.api_key"),
        (["HF_TOKEN=x"], "HF_TOKEN"),
        (["--api-key2", "x", "--token1=x"], "--api-key2"),
        (["--hfToken3=x"], "--hfToken3"),
        (["--api-key-2=x"], "--api-key-2"),
        (["--hf_token_2=x"], "--hf_token_2"),
        (["OPENAI_API_KEY_2=x"], "OPENAI_API_KEY_2"),
        (["--wandb_key1=x"], "--wandb_key1"),
        (["pg://u:password@h/d?ssl=1"], "(hidden)"),
        (["--password-file=/run/secrets/x"], None),
        (["--max-tokens", "9", "--pad_token", "<pad>", "--text-key=jpg", "--tokenizer", "x", "a@b"], None),
    ],
)
def test_a_secret_argument_is_found(words: list[str], found: str | None) -> None:
    assert find_secret_argument(words) == found


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-x", "WANDB_API_KEY=hunter2"], ["-x", "WANDB_API_KEY=(hidden)"]),
        (["-x", "LOGIN=hunter2,and more"], ["-x", "LOGIN=(hidden)"]),
        (["-x", "NCCL_DEBUG=INFO", "-x", "MY_TOKEN"], ["-x", "NCCL_DEBUG=INFO", "-x", "MY_TOKEN"]),
        (["-genv", "DB_PASSWORD", "hunter2", "-np", "2"], ["-genv", "DB_PASSWORD", "(hidden)", "-np", "2"]),
        (["-genv", "LOGIN", "hunter2"], ["-genv", "LOGIN", "(hidden)"]),
        (["-genv", "NCCL_DEBUG", "INFO"], ["-genv", "NCCL_DEBUG", "INFO"]),
        (["-genv", "LOGIN", "-hunter2", "-np", "2"], ["-genv", "LOGIN", "(hidden)", "-np", "2"]),
        (["--env", "DB_PASSWORD", "--hunter2=x"], ["--env", "DB_PASSWORD", "(hidden)"]),
        (
            ["-genv", "NCCL_X", "-1", "--genv", "LOGIN", "hunter2"],
            ["-genv", "NCCL_X", "-1", "--genv", "LOGIN", "(hidden)"],
        ),
        (["-genv", "LOGIN=hunter2", "-np", "2"], ["-genv", "LOGIN=(hidden)", "-np", "2"]),
        (["--api-key", "-hunter2", "--qos=x"], ["--api-key", "(hidden)", "--qos=x"]),
        (["--mca", "mca_base_env_list", "NCCL_DEBUG=INFO;LOGIN=hunter2"], [*("--mca", "mca_base_env_list"), _ENV_LIST]),
        (["--export=ALL,NCCL_DEBUG=INFO,LOGIN=hunter2"], ["--export=ALL,NCCL_DEBUG=INFO,LOGIN=(hidden)"]),
        (["-genv=LOGIN", "hunter2", "-np", "2"], ["-genv=LOGIN", "(hidden)", "-np", "2"]),
        (["--env=LOGIN", "-hunter2", "-np", "2"], ["--env=LOGIN", "(hidden)", "-np", "2"]),
        (["-genv=NCCL_DEBUG", "INFO"], ["-genv=NCCL_DEBUG", "INFO"]),
        *(([f"{option}=LOGIN=hunter2"], [f"{option}=LOGIN=(hidden)"]) for option in ("-env", "--env", "--genv")),
        (["--env=NCCL_DEBUG=INFO", "-np", "2"], ["--env=NCCL_DEBUG=INFO", "-np", "2"]),
        *(
            (["--mca", "mca_base_env_list", f"NCCL_DEBUG=INFO{between}LOGIN=hunter2"], [*_LIST, "NCCL_DEBUG=(hidden)"])
            for between in (":", "|", " ", "#")
        ),
        (["-x", "OMPI_MCA_mca_base_env_list=A=hunter2"], ["-x", "OMPI_MCA_mca_base_env_list=(hidden)"]),
        (["--export=ALL,LOGIN='hunter2,hunter2'"], ["--export=ALL,LOGIN=(hidden)"]),
        (["--foo=a=b,api_key=hunter2"], ["--foo=a=b,api_key=(hidden)"]),
        (["--api-key=hunter2", "--url=db://u:hunter2@h"], ["--api-key=(hidden)", "(hidden)"]),
        (["--gres=gpu:8", "--map-by", "ppr:2:node:PE=4"], ["--gres=gpu:8", "--map-by", "ppr:2:node:PE=4"]),
    ],
)
def test_words_for_a_launcher_are_shown_without_values_that_may_be_secret(words: list[str], shown: list[str]) -> None:
    assert shown_launcher_arguments(words) == shown
    for target, name in (("mpirun", "mpi_arg"), ("slurm", "slurm_arg")):
        options = TARGETS[target].options
        typed = retyped(options, {option.name: option.default_value for option in options} | {name: tuple(words)})
        assert "hunter2" not in str(typed)
        assert typed[-1].endswith(shown[-1])


def test_a_long_value_is_searched_once() -> None:
    """Every beginning of a URL was searched to the end of the value: this took minutes."""
    assert find_secret_argument(["://" * 200_000]) is None
    assert find_secret_argument([f"{'://' * 200_000}u:p@h"]) == "(hidden)"
    for long in (" " * 400_000, "a " * 200_000, "-" * 400_000, "a" * 400_000, "a:" * 200_000, "password= " * 40_000):
        assert len(shown_environment({"TORCH_X": long})) == 1
