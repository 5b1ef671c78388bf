"""References to values that stand elsewhere, in the spelling of Kafka's config providers."""

from pathlib import Path

import pytest

from twofold.connections.errors import SecretUnreadable
from twofold.connections.references import is_reference, resolve

SETTING = "sasl.password"


def test_a_variable_a_file_a_key_and_a_name_in_a_folder_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_PASSWORD", "from env")
    (tmp_path / "alone").write_text("from file\n")
    (tmp_path / "many.properties").write_text("other=1\npassword=from\\ key\n")
    assert resolve(SETTING, "${env:A_PASSWORD}") == "from env"
    assert resolve(SETTING, f"${{file:{tmp_path}/alone}}") == "from file"
    assert resolve(SETTING, f"${{file:{tmp_path}/many.properties:password}}") == "from key"
    assert resolve(SETTING, f"${{directory:{tmp_path}:alone}}") == "from file"
    assert resolve(SETTING, "between ${env:A_PASSWORD} and") == "between from env and"


def test_a_file_that_was_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "password"
    for text in ("old", "new"):
        path.write_text(text)
        assert resolve(SETTING, f"${{file:{path}}}") == text


@pytest.mark.parametrize("text", ["plain", "$", "${}", "${env}", "${vault:x}", "a ${b:c}"])
def test_a_text_that_is_no_reference_stays_as_it_is(text: str) -> None:
    assert not is_reference(text)
    assert resolve(SETTING, text) == text


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("${env:NOT_SET_ANYWHERE}", "this process has no variable NOT_SET_ANYWHERE"),
        ("${file:/nowhere/at-all}", "the file /nowhere/at-all cannot be read: No such file"),
        ("${file:FOLDER/many:wanted}", "has no key wanted"),
        ("${file:FOLDER/empty}", "is empty"),
        ("${file:FOLDER/binary}", "is no text in UTF-8"),
        ("${directory:alone}", "write \\${directory:PATH:NAME}"),
    ],
)
def test_what_cannot_be_read_is_named_and_nothing_of_what_is_there(
    tmp_path: Path, reference: str, message: str
) -> None:
    (tmp_path / "many").write_text("known=a-secret\n")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"a-secret\xff\xfe")
    with pytest.raises(SecretUnreadable, match=message) as caught:
        resolve(SETTING, reference.replace("FOLDER", str(tmp_path)))
    assert str(caught.value).startswith(SETTING)
    assert "a-secret" not in str(caught.value)
    assert not caught.value.retriable
