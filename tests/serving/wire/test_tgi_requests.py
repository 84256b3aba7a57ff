import pytest

from headrace.core.errors import Busy, ContextTooLong, EngineFailed, HeadraceError, NotFound, PromptTooLong, Unavailable
from headrace.core.generation import Grammar
from headrace.serving.wire.tgi.dialect import Tgi
from tests.serving.wire.samples import CONTEXT, body, parse

OLD, NEW = Tgi(version="1.0"), Tgi(version="3")


def sampling(dialect=NEW, **parameters):
    return parse(dialect, inputs="hi", parameters=parameters).requests[0].sampling


def refusal(dialect=NEW, *, stream=False, inputs="hi", **parameters):
    with pytest.raises(HeadraceError) as caught:
        parse(dialect, inputs=inputs, parameters=parameters, stream=stream)
    reply = dialect.render_error(caught.value)
    return reply.status, reply.body.decode()


def test_defaults_are_greedy_with_20_tokens_in_1_0_and_the_whole_context_in_3():
    old, new = sampling(OLD), sampling(NEW)
    assert (old.max_new_tokens, new.max_new_tokens) == (20, None)
    assert old.temperature == new.temperature == 0.0
    assert new.logprobs is None
    assert new.include_stop


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [
        ({}, 0.0),
        ({"temperature": 1.0}, 0.0),
        ({"do_sample": False, "temperature": 0.7}, 0.7),
        ({"do_sample": True}, 1.0),
        ({"top_k": 5}, 1.0),
        ({"top_p": 0.9}, 1.0),
        ({"typical_p": 0.9}, 1.0),
        ({"temperature": 1e-9}, 0.0),
        ({"repetition_penalty": 1.2}, 0.0),
    ],
)
def test_tokens_are_sampled_if_do_sample_or_a_sampling_parameter_is_set(parameters, temperature):
    assert sampling(**parameters).temperature == temperature


def test_every_parameter_arrives():
    params = sampling(
        do_sample=True,
        temperature=0.9,
        top_k=50,
        top_p=0.6,
        typical_p=0.8,
        repetition_penalty=1.03,
        frequency_penalty=0.5,
        max_new_tokens=512,
        stop=["a", "b"],
        seed=2**64 - 1,
        details=True,
        top_n_tokens=2,
        decoder_input_details=True,
    )
    assert (params.temperature, params.top_k, params.top_p, params.typical_p) == (0.9, 50, 0.6, 0.8)
    assert (params.repetition_penalty, params.frequency_penalty) == (1.03, 0.5)
    assert (params.max_new_tokens, params.stop, params.seed) == (512, ("a", "b"), 2**64 - 1)
    assert (params.logprobs, params.prompt_logprobs) == (2, 0)


def test_the_article_s_body_is_a_stream():
    parsed = parse(
        OLD,
        inputs="<s>[INST] hi [/INST]",
        parameters={
            "do_sample": True,
            "top_p": 0.6,
            "temperature": 0.9,
            "top_k": 50,
            "max_new_tokens": 512,
            "repetition_penalty": 1.03,
            "stop": ["</s>"],
            "return_full_text": False,
        },
        stream=True,
    )
    assert parsed.stream
    assert parsed.reply.content_type == "text/event-stream"
    assert parsed.ignored == ()
    assert parsed.requests[0].sampling.logprobs == 0


def test_best_of_asks_for_that_many_choices_with_logprobs():
    params = sampling(best_of=2, do_sample=True)
    assert (params.n, params.logprobs) == (2, 0)


def test_truncate_is_passed_to_the_engine():
    assert parse(NEW, inputs="hi", parameters={"truncate": 7}).requests[0].truncate_prompt_tokens == 7


@pytest.mark.parametrize(
    ("grammar", "wanted"),
    [
        ({"type": "regex", "value": "a+"}, Grammar("regex", "a+")),
        ({"type": "json", "value": {"properties": {}}}, Grammar("json_schema", '{"properties":{}}')),
        ({"type": "json", "value": '{"properties": {}}'}, Grammar("json_schema", '{"properties":{}}')),
        (
            {"type": "json_schema", "value": {"name": "x", "schema": {"properties": {}}}},
            Grammar("json_schema", '{"properties":{}}'),
        ),
    ],
)
def test_grammars_are_understood(grammar, wanted):
    assert sampling(grammar=grammar).grammar == wanted


def test_1_0_applies_fields_of_later_versions():
    parsed = parse(OLD, inputs="hi", parameters={"frequency_penalty": 0.5}, extra=1)
    assert parsed.requests[0].sampling.frequency_penalty == 0.5
    assert parsed.ignored == ("extra",)


def test_routes_decide_whether_it_streams():
    assert not parse(NEW.on("generate"), inputs="hi", stream=True).stream
    assert parse(NEW.on("generate_stream"), inputs="hi").stream
    assert parse(NEW, inputs="hi", stream=True).stream


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"best_of": 4, "do_sample": True}, "`best_of` must be > 0 and <= 3. Given: 4"),
        ({"best_of": 0}, "`best_of` must be > 0 and <= 3. Given: 0"),
        ({"best_of": 2}, "you must use sampling when `best_of` is > 1"),
        ({"best_of": 2, "do_sample": True, "seed": 1}, "`seed` must not be set when `best_of` > 1"),
        ({"temperature": 0.0}, "`temperature` must be strictly positive"),
        ({"repetition_penalty": 0}, "`repetition_penalty` must be strictly positive"),
        ({"frequency_penalty": 2.1}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
        ({"top_p": 0}, "`top_p` must be > 0.0 and < 1.0"),
        ({"typical_p": 1.0}, "`typical_p` must be > 0.0 and < 1.0"),
        ({"top_k": 0}, "`top_k` must be strictly positive"),
        ({"top_k": -1}, "`top_k` must be strictly positive"),
        ({"truncate": 0}, "`truncate` must be strictly positive and less than 2000. Given: 0"),
        ({"truncate": 2001}, "`truncate` must be strictly positive and less than 2000. Given: 2001"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"max_new_tokens": -5}, "`max_new_tokens` must be strictly positive"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "`stop` supports up to 4 stop sequences. Given: 5"),
        ({"top_n_tokens": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
        ({"seed": -1}, "`seed` must be >= 0 and <= 18446744073709551615. Given: -1"),
        (
            {"grammar": {"type": "json", "value": 3}},
            "grammar is not valid: Invalid 'parameters.grammar.value': a JSON schema must be an object.",
        ),
        ({"watermark": True}, "'parameters.watermark' is not supported: watermarking is not supported. Leave it out."),
        ({"max_new_tokens": "3"}, "`parameters.max_new_tokens`: expected `int | null`, got `str`."),
        ({"max_new_tokens": 3.0}, "`parameters.max_new_tokens`: expected `int | null`, got `float`."),  # as serde
    ],
)
def test_bad_values_are_refused_in_tgi_s_words(parameters, text):
    status, written = refusal(**parameters)
    assert status == 422
    assert written == f'{{"error":"Input validation error: {text}","error_type":"validation"}}'


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"best_of": 2, "do_sample": True}, "`best_of` != 1 is not supported when streaming tokens"),
        (
            {"decoder_input_details": True},
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
    ],
)
def test_best_of_and_prompt_tokens_cannot_be_streamed(parameters, text):
    assert text in refusal(stream=True, **parameters)[1]


def test_empty_inputs_are_refused():
    assert "`inputs` cannot be empty" in refusal(inputs="")[1]


def test_the_adapter_of_a_request_is_its_adapter_id():
    named = parse(NEW, inputs="hi", parameters={"adapter_id": "lora-1"})
    assert named.requests[0].adapter == "lora-1"
    assert parse(NEW, inputs="hi", parameters={}).requests[0].adapter is None


@pytest.mark.parametrize(
    ("error", "status", "written"),
    [
        (
            PromptTooLong(prompt_tokens=9, max_prompt_tokens=5),
            422,
            (
                '{"error":"Input validation error: `inputs` must have less than 5 tokens. Given: 9",'
                '"error_type":"validation"}'
            ),
        ),
        (
            ContextTooLong(prompt_tokens=9, max_new_tokens=3, max_total_tokens=10),
            422,
            (
                '{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 10. Given: 9 `inputs` '
                'tokens and 3 `max_new_tokens`","error_type":"validation"}'
            ),
        ),
        (Busy("full", retry_after_s=2.2), 429, '{"error":"Model is overloaded","error_type":"overloaded"}'),
        (
            EngineFailed("boom"),
            424,
            '{"error":"Request failed during generation: boom","error_type":"generation"}',
        ),
        (Unavailable("starting"), 503, '{"error":"starting","error_type":"unavailable"}'),
        (NotFound("no"), 404, '{"error":"no","error_type":"not_found"}'),
    ],
)
def test_errors_have_tgi_s_status_and_form(error, status, written):
    reply = NEW.render_error(error)
    assert (reply.status, reply.body.decode()) == (status, written)


def test_an_overload_has_retry_after():
    assert NEW.render_error(Busy("full", retry_after_s=2.2)).headers == (("retry-after", "3"),)


def test_a_body_that_is_not_json_is_400():
    with pytest.raises(HeadraceError) as caught:
        NEW.parse(b'{"inputs":', CONTEXT)
    reply = NEW.render_error(caught.value)
    assert reply.status == 400
    assert b"Failed to parse the request body as JSON" in reply.body


def test_null_is_the_same_as_an_absent_field():
    assert (
        NEW.parse(body(inputs="hi", parameters=None, stream=None), CONTEXT).requests == parse(NEW, inputs="hi").requests
    )
