from graphlint.record.tables import Frame, Module, Name, Optimizer, Parameter, Site


def named(of: str, number: int, name: str, scope: str = "<module>") -> Name:
    return Name(of=of, id=number, name=name, scope=scope)


def test_a_tensor_is_called_as_the_reader_s_function_calls_it(build, tensor):
    facts = build(tensor(0), named("tensor", 0, "x", "Net.forward"), named("tensor", 0, "images", "train"))
    assert facts.names.tensor(0) == "`images`"
    assert facts.names.tensor(0, "Net.forward") == "`x`"
    assert facts.names.tensor(0, "elsewhere") == "`images`"


def test_a_nameless_tensor_is_described(build, tensor):
    facts = build(tensor(0, shape=(8, 1)), tensor(1, shape=()))
    assert facts.names.tensor(0) == "a tensor of shape (8, 1)"
    assert facts.names.tensor(1) == "a tensor of one element"
    assert facts.names.tensor_name(0) is None


def test_a_module_is_called_by_its_root_and_its_place(build):
    modules = (Module(id=0, type="Net", root=0), Module(id=1, type="Linear", root=0, path="out"))
    facts = build(*modules, named("module", 0, "self", "Net.forward"), named("module", 0, "net"))
    assert facts.names.module(0) == "`net`"
    assert facts.names.module(1) == "`net.out`"
    assert build(*modules).names.module(0) == "the Net module"


def test_a_shared_parameter_gets_the_shortest_of_its_names(build, tensor):
    facts = build(
        tensor(0, parameter=True),
        Module(id=0, type="Net", root=0),
        Module(id=1, type="Linear", root=0, path="decoder.out"),
        Module(id=2, type="Embedding", root=0, path="embed"),
        named("module", 0, "net"),
        Parameter(tensor=0, module=1, name="weight"),
        Parameter(tensor=0, module=2, name="weight"),
    )
    assert facts.names.parameter(0) == "`net.embed.weight`"
    assert facts.names.tensor(0) == "`net.embed.weight`"


def test_a_nameless_optimizer_is_described_by_its_line(build):
    site = Site(id=0, frames=(Frame("train.py", 12, "<module>", 1),))
    facts = build(site, Optimizer(id=0, type="Adam", groups=(), site=0))
    assert facts.names.optimizer(0) == "the Adam optimizer made at line 12"


def test_what_the_record_does_not_know_still_has_words(build):
    facts = build()
    assert facts.names.tensor(7) == "a tensor"
    assert facts.names.module(7) == "a module"
    assert facts.names.parameter(7) == "a parameter"
    assert facts.names.optimizer(7) == "an optimizer"
