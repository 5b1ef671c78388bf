"""A pipeline's configuration: files, flags, and what is refused with which words."""

import sys
from pathlib import Path

import pytest

from twofold.pipeline.config import Flags, PipelineConfig, PipelineConfigError, PipelineFailed, build
from twofold.pipeline.loading import load
from twofold.pipeline.running import Activity, SinkProgress, prefix_of, servers_of
from twofold.pipeline.template import write_project
from twofold.pipeline.words import explain, failure

FILE = Path("orders.py")
FLAGS = Flags(sources=("orders",), sinks=("totals",), checkpoint="/c")


def of_toml(directory: Path, text: str, flags: Flags | None = None) -> PipelineConfig:
    path = directory / "pipeline.toml"
    path.write_text(text)
    return build(FILE, path, flags or Flags())


def test_flags_are_enough():
    config = build(FILE, None, FLAGS)
    assert (config.name, config.master, config.bootstrap_servers) == ("orders", None, "127.0.0.1:9092")
    assert config.sources[0].options == {"subscribe": "orders"}
    assert config.sinks[0].options == {"topic": "totals"}
    assert config.checkpoint_of(config.sinks[0]) == "/c/totals"
    assert config.trigger_options == {"processingTime": "1 second"}


def test_a_source_and_a_sink_may_have_names_and_options():
    flags = Flags(
        sources=("a=orders-2026", "b=people"),
        sinks=("out=totals",),
        checkpoint="/c",
        options={"a.startingOffsets": "earliest", "out.kafka.compression.type": "zstd"},
    )
    config = build(FILE, None, flags)
    assert [source.name for source in config.sources] == ["a", "b"]
    assert config.sources[0].options == {"subscribe": "orders-2026", "startingOffsets": "earliest"}
    assert config.sinks[0].options == {"topic": "totals", "kafka.compression.type": "zstd"}


def test_a_topic_whose_name_is_no_name_of_python_gets_one():
    config = build(FILE, None, Flags(sources=("orders.v2-eu",), sinks=("totals",), checkpoint="/c"))
    assert config.sources[0].name == "orders_v2_eu"


def test_the_file_that_init_writes_is_a_pipeline(tmp_path: Path):
    files = write_project(tmp_path / "shop")
    config = build(files[0], files[1], Flags(trigger="available-now"))
    assert (config.name, config.sources[0].name, config.sinks[0].name) == ("shop", "orders", "totals")
    assert config.checkpoint == str(tmp_path / "shop" / "checkpoint"), "beside the file, wherever the command is run"
    assert config.trigger_options == {"availableNow": True}
    assert config.spark == {"spark.driver.memory": "1g"}
    assert load(files[0], ("orders",)).configure is not None


@pytest.mark.parametrize("name", ["my shop", 'the "best" shop', "laden-für-äpfel"])
def test_a_project_may_be_in_any_directory(tmp_path: Path, name: str):
    files = write_project(tmp_path / name)
    assert build(files[0], files[1], Flags()).name == name


def test_a_project_is_written_into_an_empty_directory_only(tmp_path: Path):
    shop = tmp_path / "shop"
    (shop / ".git").mkdir(parents=True)
    write_project(shop)
    (shop / "transform.py").write_text("mine")
    with pytest.raises(PipelineConfigError, match=r"is not empty \(it has README.md, pipeline.toml, transform.py\)"):
        write_project(shop)
    assert (shop / "transform.py").read_text() == "mine"
    with pytest.raises(PipelineConfigError, match="is a file"):
        write_project(shop / "transform.py")


def test_a_flag_counts_more_than_the_file(tmp_path: Path):
    text = """
    [pipeline]
    checkpoint = "c"
    trigger = "5 seconds"
    [sources.orders]
    subscribe = "orders"
    maxOffsetsPerTrigger = 100
    kafka.client.id = "me"
    [sinks.totals]
    topic = "totals"
    mode = "complete"
    [spark]
    spark.ui.enabled = true
    """
    config = of_toml(tmp_path, text, Flags(trigger="1 minute", spark={"spark.ui.enabled": "false"}, checkpoint="/d"))
    assert (config.trigger, config.checkpoint, config.spark) == ("1 minute", "/d", {"spark.ui.enabled": "false"})
    assert config.sources[0].options["maxOffsetsPerTrigger"] == "100"
    assert config.sources[0].options["kafka.client.id"] == "me"
    assert config.sinks[0].mode == "complete"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (Flags(sinks=("t",), checkpoint="/c"), "nothing to read"),
        (Flags(sources=("t",), checkpoint="/c"), "nothing to write"),
        (Flags(sources=("t",), sinks=("u",)), "where is the checkpoint"),
        (Flags(sources=("1=t",), sinks=("u",), checkpoint="/c"), "--source '1=t'"),
        (Flags(sources=("a=t", "a=u"), sinks=("u",), checkpoint="/c"), "two sources with the name 'a'"),
        (Flags(sources=("t",), sinks=("u",), checkpoint="/c", trigger="soon"), "trigger='soon'"),
        (Flags(sources=("t",), sinks=("u",), checkpoint="/c", options={"x.y": "1"}), "with one of t, u"),
        (Flags(sources=("t",), sinks=("t",), checkpoint="/c", options={"t.x": "1"}), "t is a source and a sink"),
    ],
    ids=str,
)
def test_flags_that_make_no_pipeline_are_refused(flags: Flags, message: str):
    with pytest.raises(PipelineConfigError, match=message):
        build(FILE, None, flags)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pipelines]", r"\[pipelines\] is not known \(did you mean 'pipeline'\?\)"),
        ("[pipeline]\ncheckpont = 'c'", "did you mean 'checkpoint'"),
        ("pipeline = 1", "must be a table"),
        ("[sources]\norders = 'x'", r"write \[sources.NAME\]"),
        ("[sinks.a]\ntopic = ['x']", "sinks.a.topic must be a text"),
        ("[sinks.a]\nmode = 'update'", "is none of append, complete"),
        ("[pipeline]\ntrigger = 5", 'pipeline.trigger = 5 must be a text, such as trigger = "1 second"'),
        ("[pipeline]\nformat = 'json'", r"pipeline.format is not known: use one of name, checkpoint"),
        ("[", "is not a TOML file"),
        ("[pipeline]\ntrigger = soon", "line 2, column 11.*: 'trigger = soon'; texts are written in quotes"),
    ],
    ids=str,
)
def test_a_file_that_makes_no_pipeline_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(PipelineConfigError, match=message):
        of_toml(tmp_path, text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(PipelineConfigError, match="cannot be read: No such file"):
        build(FILE, tmp_path / "none.toml", Flags())
    (tmp_path / "orders.toml").touch()
    with pytest.raises(
        PipelineConfigError, match=r"order\.toml cannot be read: No such file .*\(there is orders\.toml\)"
    ):
        build(FILE, tmp_path / "order.toml", Flags())
    with pytest.raises(PipelineConfigError, match="is not there"):
        load(tmp_path / "none.py", ("df",))
    (tmp_path / "orders.py").touch()
    with pytest.raises(PipelineConfigError, match=r"order\.py is not there: .* has orders\.py"):
        load(tmp_path / "order.py", ("df",))
    with pytest.raises(PipelineConfigError, match="is a directory"):
        load(tmp_path, ("df",))
    for name, message in (("pipe.toml", "name the Python file first"), ("pipe.txt", "its name must end in .py")):
        (tmp_path / name).touch()
        with pytest.raises(PipelineConfigError, match=message):
            load(tmp_path / name, ("df",))


@pytest.mark.parametrize(
    ("text", "sources", "message"),
    [
        ("x = 1", ("a",), "has no function transform"),
        ("transform = 3", ("a",), "has no function transform"),
        ("def transform(): pass", ("a",), r"transform\(\) in .* must take one DataFrame"),
        ("def transform(a): pass", ("a", "b"), "must take the DataFrames a, b by these names"),
        ("def transform(df): pass\nconfigure = 1", ("a",), "configure in .* must be a function"),
        ("import nowhere_at_all", ("a",), r"cannot be loaded: ModuleNotFoundError: .* \(pipe.py:1\)"),
        ("def transform(df)\n    pass", ("a",), r"cannot be loaded: SyntaxError: .* \(pipe.py:1\)"),
        ("\nraise SystemExit(3)", ("a",), r"cannot be loaded: SystemExit: 3 \(pipe.py:2\)"),
        ("\0", ("a",), r"cannot be loaded: .*null bytes"),
    ],
    ids=str,
)
def test_a_python_file_that_is_no_pipeline_is_refused(tmp_path: Path, text: str, sources: tuple, message: str):
    path = tmp_path / "pipe.py"
    path.write_text(text)
    with pytest.raises(PipelineConfigError, match=message):
        load(path, sources)


def test_what_transform_returns_goes_to_the_sinks_by_name(tmp_path: Path):
    class Frame:
        writeStream = None  # noqa: N815

    sinks = build(FILE, None, Flags(sources=("s",), sinks=("a=x", "b=y"), checkpoint="/c")).sinks
    path = tmp_path / "pipe.py"
    path.write_text("def transform(df):\n    return {'a': df, 'b': df}")
    frame = Frame()
    assert load(path, ("s",)).apply({"s": frame}, sinks) == {"a": frame, "b": frame}
    path.write_text("def transform(df):\n    return df")
    with pytest.raises(PipelineFailed, match="a dict with a DataFrame for each of the sinks a, b"):
        load(path, ("s",)).apply({"s": frame}, sinks)
    path.write_text("def transform(df):\n    return {'c': df}")
    with pytest.raises(PipelineFailed, match="returned frames for c: the sinks are a, b"):
        load(path, ("s",)).apply({"s": frame}, sinks)
    path.write_text("def transform(df):\n    return {'a': df, 'b': 3}")
    with pytest.raises(PipelineFailed, match="returned a int for the sink b, not a DataFrame"):
        load(path, ("s",)).apply({"s": frame}, sinks)
    path.write_text("def transform(df):\n    df")
    with pytest.raises(PipelineFailed, match="returned a NoneType for the sink a, not a DataFrame: is a `return` miss"):
        load(path, ("s",)).apply({"s": frame}, sinks[:1])
    path.write_text("def transform(df):\n    return 1 / 0")
    with pytest.raises(PipelineFailed, match=r"failed: ZeroDivisionError: division by zero \(pipe.py:2\)"):
        load(path, ("s",)).apply({"s": frame}, sinks[:1])


def test_an_error_in_what_the_file_imports_is_found_there(tmp_path: Path):
    (tmp_path / "beside_the_pipeline.py").write_text("def tax(df):\n    return df['nope']\n")
    path = tmp_path / "pipe.py"
    path.write_text("import beside_the_pipeline as b\n\ndef transform(df):\n    return b.tax(df)")
    sinks = build(FILE, None, FLAGS).sinks
    with pytest.raises(PipelineFailed, match=r"KeyError: 'nope' \(beside_the_pipeline.py:2\)"):
        load(path, ("orders",)).apply({"orders": {}}, sinks)


def test_a_file_may_have_the_name_of_a_module_that_others_use(tmp_path: Path):
    import json

    path = tmp_path / "json.py"
    path.write_text("def transform(df):\n    return df")
    assert load(path, ("df",)).module is not json
    assert sys.modules["json"] is json


def test_of_a_failed_query_people_see_the_error_and_not_the_trace():
    text = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "x.py", line 1, in f
    raise OptionError("nothing")
twofold.spark.errors.OptionError: no topic to write to: set the option topic, or add a column 'topic'
\tat org.apache.spark.Foo(Foo.scala:1)
"""
    assert explain(text) == "no topic to write to: set the option topic, or add a column 'topic'"
    missing = explain("Traceback (most recent call last):\n  x\ntwofold.wire.errors.X: topic 't' does not exist")
    assert missing.startswith("topic 't' does not exist: create it with `twofold topic create`")
    assert explain("\n[SOMETHING] went wrong SQLSTATE: 42703\n\tat a.b(C:1)") == "[SOMETHING] went wrong"


def test_an_error_of_the_users_function_in_an_executor_names_its_line():
    text = """Job aborted due to stage failure: PythonException: Traceback (most recent call last):
  File "/spark/worker.py", line 900, in main
    process()
  File "/home/me/pipe.py", line 7, in tax
    return 1 / amount
           ~~^~~~~~~~
  File "/lib/decimal.py", line 3, in __div__
ZeroDivisionError: division by zero
\tat org.apache.spark.Foo(Foo.scala:1)
"""
    assert explain(text, Path("/home/me/pipe.py")) == "ZeroDivisionError: division by zero (pipe.py:7)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "assertion failed: There are [1] sources in the checkpoint offsets and now there are [2] sources requested "
            "by the query. Cannot continue.",
            "the checkpoint is of another query: There are [1] sources",
        ),
        (
            "[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA] Streaming stateful operator name does not match",
            "the checkpoint is of another query: [STREAMING_STATEFUL_OPERATOR_NOT_MATCH",
        ),
        ("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log", "another process runs this pipeline"),
        ("[JAVA_GATEWAY_EXITED] Java gateway process exited", "the JVM did not start: look at the master"),
        ("Answer from Java side is empty", "the JVM has ended, killed or out of memory"),
        ("java.io.IOException: Python worker failed to connect back.", "the machine has too much to do"),
    ],
    ids=["sources", "state", "two runs", "no JVM", "JVM gone", "busy"],
)
def test_what_spark_says_of_known_troubles_is_told_with_what_to_do(text: str, message: str):
    assert message in explain(f"[STREAM_FAILED] Query [id = 1] terminated with exception: {text}\n\tat a.b(C:1)")


def test_a_run_that_has_lost_the_pipeline_to_another_knows_it():
    stale = "Stale: driver 1f has taken over what is written under transactionalIdPrefix='x'"
    assert failure(stale, FILE).is_taken_over
    assert failure("[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log", FILE).is_taken_over
    assert not failure("topic 't' does not exist", FILE).is_taken_over


def test_progress_counts_every_batch_once_and_tells_the_lag():
    row = {
        "batchId": 3,
        "numInputRows": 10,
        "processedRowsPerSecond": 5.0,
        "durationMs": {"addBatch": 7},
        "sources": [{"endOffset": '{"t": {"0": 7}}', "latestOffset": '{"t": {"0": 9, "1": 2}}'}],
    }
    progress = SinkProgress("s")
    progress.take(row)
    progress.take(row)
    assert (progress.batch_id, progress.rows, progress.lag, progress.activity) == (3, 10, 4, Activity.RUNNING)
    progress.take(row | {"batchId": 4, "sources": [{"endOffset": '{"t": {"0": 7}}', "latestOffset": "null"}]})
    assert (progress.batch_id, progress.rows, progress.lag) == (4, 20, None)


def test_a_batch_counts_although_its_number_was_idle_before():
    idle = {"batchId": 1, "numInputRows": 0, "processedRowsPerSecond": 0.0, "durationMs": {"latestOffset": 1}}
    batch = {"batchId": 1, "numInputRows": 10, "processedRowsPerSecond": 5.0, "durationMs": {"addBatch": 7}}
    progress = SinkProgress("s")
    progress.take(idle | {"sources": []})
    assert (progress.activity, progress.batch_id) == (Activity.IDLE, 0)
    progress.take(batch | {"sources": []})
    assert (progress.batch_id, progress.rows, progress.rows_per_s) == (1, 10, 5.0)
    progress.take(idle | {"batchId": 2, "sources": []})
    assert (progress.batch_id, progress.rows, progress.rows_per_s) == (1, 10, 0.0)


def test_a_sink_has_its_name_from_the_checkpoint_and_without_transactions_none(tmp_path: Path):
    flags = Flags(sources=("s",), sinks=("a", "b", "c"), checkpoint=str(tmp_path), options={})
    config = build(FILE, None, flags)
    a, b, c = config.sinks
    assert prefix_of(config, a) is None, "there is no query yet"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "metadata").write_text('{"id":"4f"}')
    assert prefix_of(config, a) == "spark-4f"
    off = type(b)("b", {"topic": "b", "exactlyOnce": "off"})
    named = type(c)("c", {"topic": "c", "transactionalIdPrefix": "mine"})
    assert (prefix_of(config, off), prefix_of(config, named)) == (None, "mine")


def test_a_sink_may_be_in_another_cluster_and_have_another_checkpoint():
    options = {"a.kafka.Bootstrap.Servers": "other:9092", "a.checkpointlocation": "s3://b/c"}
    config = build(FILE, None, Flags(sources=("s",), sinks=("a",), checkpoint="/c", options=options))
    assert servers_of(config, config.sinks[0]) == "other:9092"
    assert len(config.options_of(config.sinks[0])) == 3, "nothing is said twice"


def test_a_checkpoint_is_the_same_wherever_the_command_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    config = build(FILE, None, Flags(sources=("s",), sinks=("a",), checkpoint="c"))
    assert config.checkpoint_of(config.sinks[0]) == str(tmp_path / "c" / "a")
    assert build(FILE, None, Flags(sources=("s",), sinks=("a",), checkpoint="s3://b/c")).checkpoint == "s3://b/c"


def test_a_missing_toml_file_is_named(tmp_path: Path):
    files = write_project(tmp_path / "shop")
    with pytest.raises(PipelineConfigError, match=r"with --config \(there is pipeline.toml beside transform.py\)"):
        build(files[0], None, Flags())


def test_what_stops_a_batch_before_its_tasks_is_told_without_the_pickling_that_it_happened_in():
    said = "batch 0 of query q was decided with other input: the digest of its end offsets is a"
    raised = f"_pickle.PicklingError: Could not serialize object: OtherInput: {said}"
    assert explain(f"Traceback (most recent call last):\n  x\n{raised}") == said


@pytest.mark.parametrize(
    ("written", "where"), [("9465", "127.0.0.1:9465"), ("0", "127.0.0.1:0"), ("0.0.0.0:9465", "0.0.0.0:9465")]
)
def test_metrics_are_for_this_machine_unless_a_host_is_named(tmp_path: Path, written: str, where: str):
    assert build(FILE, None, FLAGS).metrics is None
    text = (
        f'[pipeline]\ncheckpoint = "c"\nmetrics = "{written}"\n[sources.a]\nsubscribe = "a"\n[sinks.b]\ntopic = "b"\n'
    )
    assert of_toml(tmp_path, text).metrics == where
    assert of_toml(tmp_path, text, Flags(metrics="9999")).metrics == "127.0.0.1:9999", "a flag counts more"


@pytest.mark.parametrize("written", ["localhost", "host:99999", "host:port", ":9465"])
def test_an_address_of_metrics_that_is_none_is_refused_with_its_value(written: str):
    with pytest.raises(PipelineConfigError, match=f"metrics={written}"):
        build(FILE, None, Flags(sources=("a",), sinks=("b",), checkpoint="/c", metrics=written))
