//! Reads a distribution of lengths.

use super::call::{self, Call, Form, choices, ordered, real};
use super::distribution::{FORMS, LONGEST, Shape, table};
use super::tables::tables;

/// How deep distributions may contain each other: more than anybody writes, and far from the end of the stack.
const DEEPEST: u32 = 8;

/// Reads a distribution that is inside of `depth` others.
pub(super) fn shape(text: &str, depth: u32) -> Result<Shape, String> {
    let call = Call::parse(text)?;
    if depth > DEEPEST {
        return Err(format!("`{text}` is inside of more than {DEEPEST} other distributions; write a simpler one"));
    }
    if call.arguments.is_empty() {
        return plain(&call);
    }
    let form = call.form(FORMS).ok_or_else(|| unknown(&call))?;
    // What is wrong inside of another distribution has its own form named already.
    let error = |problem: String| form.error(problem);
    match call.name {
        "uniform" => uniform(&call).map_err(error),
        "lognormal" => lognormal(&call).map_err(error),
        "zipf" => zipf(&call).map_err(error),
        "bimodal" => bimodal(&call).map_err(error),
        "list" => call::list("length", &call.arguments, 1..=LONGEST, "tokens").map(Shape::List).map_err(error),
        "mix" => {
            call.arguments.iter().map(|part| weighted(part, form, depth)).collect::<Result<_, _>>().map(Shape::Mix)
        }
        "clamp" => {
            let [of, low, high] = call.exactly().map_err(error)?;
            let (low, high) = bounds(low, high).map_err(error)?;
            Ok(Shape::Clamp { of: Box::new(shape(of, depth + 1)?), low, high })
        }
        "scale" => {
            let [of, factor] = call.exactly().map_err(error)?;
            let factor = real("FACTOR", factor, 1e-6..=1e6, "").map_err(error)?;
            Ok(Shape::Scale { of: Box::new(shape(of, depth + 1)?), factor })
        }
        _ => Err(unknown(&call)),
    }
}

/// A number or the name of a table.
fn plain(call: &Call<'_>) -> Result<Shape, String> {
    if let Some(table) = table(call.name) {
        return Ok(Shape::Table(table));
    }
    if let Some(form) = call.form(&FORMS[1..]) {
        return Err(form.error(format!("`{}` lacks its arguments", call.name)));
    }
    if call.name.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) {
        return tokens("the length", call.name).map(Shape::Fixed).map_err(|problem| FORMS[0].error(problem));
    }
    Err(unknown(call))
}

fn unknown(call: &Call<'_>) -> String {
    let tables: Vec<&str> = tables().iter().map(|table| table.name.as_str()).collect();
    let (name, forms, tables) = (call.name, choices(FORMS), tables.join(", "));
    format!("`{name}` is no distribution of lengths in tokens; there are {forms} and the tables {tables}")
}

fn tokens(what: &str, text: &str) -> Result<u64, String> {
    call::whole(what, text, 1..=LONGEST, "tokens")
}

fn bounds(low: &str, high: &str) -> Result<(u64, u64), String> {
    let (low, high) = (tokens("LOW", low)?, tokens("HIGH", high)?);
    ordered(("LOW", low), ("HIGH", high))?;
    Ok((low, high))
}

fn uniform(call: &Call<'_>) -> Result<Shape, String> {
    let [low, high] = call.exactly()?;
    let (low, high) = bounds(low, high)?;
    Ok(Shape::Uniform { low, high })
}

/// With bounds it is a clamped one, and written so.
fn lognormal(call: &Call<'_>) -> Result<Shape, String> {
    let (mu, sigma, cut) = match call.arguments[..] {
        [mu, sigma] => (mu, sigma, None),
        [mu, sigma, low, high] => (mu, sigma, Some(bounds(low, high)?)),
        _ => return Err(format!("`lognormal` takes 2 or 4 arguments, not {}", call.arguments.len())),
    };
    let mu = real("MU", mu, 0.0..=20.0, "(logarithm of tokens)")?;
    let sigma = real("SIGMA", sigma, 0.0..=10.0, "(logarithm of tokens)")?;
    let shape = Shape::LogNormal { mu, sigma };
    Ok(match cut {
        Some((low, high)) => Shape::Clamp { of: Box::new(shape), low, high },
        None => shape,
    })
}

fn zipf(call: &Call<'_>) -> Result<Shape, String> {
    let [s, max] = call.exactly()?;
    Ok(Shape::Zipf { s: real("S", s, 0.0..=10.0, "")?, max: tokens("MAX", max)? })
}

fn bimodal(call: &Call<'_>) -> Result<Shape, String> {
    let [short, long, p] = call.exactly()?;
    let (short, long) = (tokens("SHORT", short)?, tokens("LONG", long)?);
    ordered(("SHORT", short), ("LONG", long))?;
    Ok(Shape::Bimodal { short, long, p: real("P", p, 0.0..=1.0, "")? })
}

/// A part of a mixture.
fn weighted(part: &str, form: &Form, depth: u32) -> Result<(f64, Shape), String> {
    let Some((weight, of)) = part.split_once('*') else {
        return Err(form.error(format!("`{part}` has no weight")));
    };
    let weight = real("the weight W", weight.trim(), 1e-6..=1e6, "").map_err(|problem| form.error(problem))?;
    Ok((weight, shape(of, depth + 1)?))
}
