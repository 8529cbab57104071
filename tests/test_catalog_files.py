"""Reading catalog files: search order, and one clear message with file and line for each fault."""

import pytest

from dfmodel.catalog_files import catalog_dirs, find, list_names, load_yaml, packaged_catalogs
from dfmodel.errors import InputError, UnknownNameError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", r"line 2: key 'a' is given twice"),
        ("a: {b: 1,\n  b: 2}\n", r"line 2: key 'b' is given twice"),
        ("a: [1\n", r"line 2: YAML syntax error"),
        ("a: &x 1\nb: *x\n", r"line 2: alias '\*x' is not allowed"),
        ("a: 1\n---\nb: 2\n", r"line 2: YAML syntax error: .*another document"),
        ("a: !!python/object:os.system x\n", r"line 1: YAML syntax error: .*constructor"),
        ("- 1\n", r"expected a mapping"),
        ("a: 2020-13-45\n", r"YAML error: month"),
        ("? [1]\n: 2\n", r"line 1: a key must be a single word"),
        ("a: " + "[" * 60 + "]" * 60, r"line 1: nested more than 50 levels"),
        ("[" * 500_000, r"YAML|nested more than 50 levels"),  # which of the two, the version of libyaml decides
        ("a: '" + "x" * 1_000_001 + "'", r"larger than 1,000,000 bytes"),
    ],
)
def test_faulty_files_are_refused_with_file_and_line(text, message, tmp_path):
    path = tmp_path / "thing.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as error:
        load_yaml(path)
    assert str(error.value).startswith(str(path))


def test_unreadable_files_are_named(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.yaml: cannot be read"):
        load_yaml(tmp_path / "nothing.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    with pytest.raises(InputError, match=r"latin\.yaml: not UTF-8"):
        load_yaml(tmp_path / "latin.yaml")


def test_user_folders_come_before_the_environment_and_the_package(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        (folder / "models").mkdir(parents=True)
        (folder / "models" / "mine.yaml").write_text("name: mine\n")
    (second / "models" / "gpt3_175b.yaml").write_text("name: other\n")
    monkeypatch.setenv("DFMODEL_CATALOG_PATH", str(second))
    assert catalog_dirs([first]) == [first, second, packaged_catalogs()]
    assert find("models", "mine", [first]) == first / "models" / "mine.yaml"
    assert find("models", "gpt3_175b") == second / "models" / "gpt3_175b.yaml"
    assert list_names("models", [first]).count("mine") == 1


def test_missing_names_paths_and_folders(tmp_path, monkeypatch):
    with pytest.raises(UnknownNameError, match=r"unknown model 'gpt3_175' \(did you mean 'gpt3_175b'\?\)"):
        find("models", "gpt3_175")
    with pytest.raises(InputError, match=r"\./x\.yaml: no such file"):
        find("models", "./x.yaml")
    monkeypatch.setenv("DFMODEL_CATALOG_PATH", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"--catalog: .*here.*\n\$DFMODEL_CATALOG_PATH: .*gone"):
        catalog_dirs([tmp_path / "here"])
