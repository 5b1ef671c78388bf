"""A pipeline's configuration: files, flags, and what is refused with which words."""

from pathlib import Path

import pytest

from twofold.pipeline.config import ConfigError, Flags, PipelineConfig, build
from twofold.pipeline.loading import load
from twofold.pipeline.running import PipelineFailed, Progress, explain, prefix_of
from twofold.pipeline.template import write_project
from twofold.sink.names import prefix_of_checkpoint

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
    with pytest.raises(ConfigError, match="is there already"):
        write_project(tmp_path / "shop")


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
    ],
    ids=str,
)
def test_flags_that_make_no_pipeline_are_refused(flags: Flags, message: str):
    with pytest.raises(ConfigError, match=message):
        build(FILE, None, flags)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[pipelines]", r"\[pipelines\] is not known \(did you mean 'pipeline'\?\)"),
        ("[pipeline]\ncheckpont = 'c'", "did you mean 'checkpoint'"),
        ("pipeline = 1", "is to be a table"),
        ("[sources]\norders = 'x'", r"write \[sources.NAME\]"),
        ("[sinks.a]\ntopic = ['x']", "sinks.a.topic is to be a text"),
        ("[sinks.a]\nmode = 'update'", "is none of append, complete"),
        ("[", "is not a TOML file"),
    ],
    ids=str,
)
def test_a_file_that_makes_no_pipeline_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(ConfigError, match=message):
        of_toml(tmp_path, text)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        build(FILE, tmp_path / "none.toml", Flags())
    with pytest.raises(ConfigError, match="is not there"):
        load(tmp_path / "none.py", ("df",))


@pytest.mark.parametrize(
    ("text", "sources", "message"),
    [
        ("x = 1", ("a",), "has no function transform"),
        ("transform = 3", ("a",), "has no function transform"),
        ("def transform(): pass", ("a",), r"transform\(\) in .* is to take one DataFrame"),
        ("def transform(a): pass", ("a", "b"), "is to take the DataFrames a, b by these names"),
        ("def transform(df): pass\nconfigure = 1", ("a",), "configure in .* is to be a function"),
        ("import nowhere_at_all", ("a",), r"cannot be loaded: ModuleNotFoundError: .* \(line 1\)"),
        ("def transform(df)\n    pass", ("a",), r"cannot be loaded: SyntaxError: .* \(line 1\)"),
    ],
    ids=str,
)
def test_a_python_file_that_is_no_pipeline_is_refused(tmp_path: Path, text: str, sources: tuple, message: str):
    path = tmp_path / "pipe.py"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
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
    with pytest.raises(ConfigError, match="a dict with a DataFrame for each of the sinks a, b"):
        load(path, ("s",)).apply({"s": frame}, sinks)
    path.write_text("def transform(df):\n    return {'c': df}")
    with pytest.raises(ConfigError, match="returned frames for c: the sinks are a, b"):
        load(path, ("s",)).apply({"s": frame}, sinks)
    path.write_text("def transform(df):\n    return None")
    with pytest.raises(ConfigError, match="returned a NoneType, not a DataFrame"):
        load(path, ("s",)).apply({"s": frame}, sinks[:1])
    path.write_text("def transform(df):\n    return 1 / 0")
    with pytest.raises(ConfigError, match=r"failed: ZeroDivisionError: division by zero \(line 2\)"):
        load(path, ("s",)).apply({"s": frame}, sinks[:1])


def test_of_a_failed_query_people_see_the_error_and_not_the_trace():
    text = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "x.py", line 1, in f
    raise OptionError("nothing")
twofold.spark.errors.OptionError: no topic to write to: set the option topic, or add a column 'topic'
\tat org.apache.spark.Foo(Foo.scala:1)
"""
    assert explain(text) == "no topic to write to: set the option topic, or add a column 'topic'"
    assert explain("Traceback (most recent call last):\n  x\na.b.UnknownTopic: topic 't' does not exist") == (
        "topic 't' does not exist"
    )
    assert explain("\n[SOMETHING] went wrong\n\tat a.b(C:1)") == "[SOMETHING] went wrong"
    assert issubclass(PipelineFailed, Exception)


def test_progress_counts_every_batch_once_and_tells_the_lag():
    row = {
        "batchId": 3,
        "numInputRows": 10,
        "processedRowsPerSecond": 5.0,
        "sources": [{"endOffset": '{"t": {"0": 7}}', "latestOffset": '{"t": {"0": 9, "1": 2}}'}],
    }
    progress = Progress("s")
    progress.take(row)
    progress.take(row)
    assert (progress.batch_id, progress.rows, progress.lag, progress.waiting) == (3, 10, 4, False)
    progress.take(row | {"batchId": 4, "sources": [{"endOffset": '{"t": {"0": 7}}', "latestOffset": "null"}]})
    assert (progress.batch_id, progress.rows, progress.lag) == (4, 20, None)


def test_a_sink_that_writes_without_transactions_has_no_name():
    config = build(FILE, None, Flags(sources=("s",), sinks=("a", "b", "c"), checkpoint="/c", options={}))
    a, b, c = config.sinks
    assert prefix_of(config, a) == prefix_of_checkpoint("/c/a")
    off = type(b)("b", {"topic": "b", "exactlyOnce": "off"})
    named = type(c)("c", {"topic": "c", "transactionalIdPrefix": "mine"})
    assert (prefix_of(config, off), prefix_of(config, named)) == (None, "mine")
