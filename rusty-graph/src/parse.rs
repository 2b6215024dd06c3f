//! Reading the [text form](crate::text) of a graph.

mod words;

use std::collections::HashMap;
use std::str::FromStr;

use rusty_loader::Format;

use crate::ir::NO_VALUE;
use crate::text::{BINARY, GROUP_SCORES, UNARY};
use crate::{
    AttentionSpec, AttentionValues, Dim, Error, Graph, Input, KvLayer, Node, NodeId, Op, Result,
    RopeId, RopeLayout, RopeScaling, RopeSpec, RouteGroups, RouteScore, RouteSpec, Site, SiteId,
    SymId, Symbol, Value, ValueId, WeightDecl, WeightId,
};
use words::{Parsed, Words, id, number};

impl Graph {
    /// Reads a graph's text form and verifies the graph.
    ///
    /// # Errors
    /// [`Error::Parse`] with the line, or what [`verify`](crate::verify()) finds.
    pub fn parse(text: &str) -> Result<Graph> {
        let mut graph = Graph {
            arch: String::new(),
            symbols: vec![],
            nodes: vec![],
            values: vec![],
            weights: vec![],
            sites: vec![],
            site_ids: HashMap::new(),
            ropes: vec![],
            kv: vec![],
            logits: NO_VALUE,
            hidden: NO_VALUE,
            context: 0,
            vocab: 0,
        };
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            statement(&mut graph, &mut Words::new(line)).map_err(|reason| Error::Parse {
                line: at + 1,
                reason,
            })?;
        }
        crate::verify(&graph)?;
        Ok(graph)
    }
}

impl FromStr for Graph {
    type Err = Error;

    fn from_str(text: &str) -> Result<Graph> {
        Graph::parse(text)
    }
}

/// An id that must be the next of its table.
fn next_id(words: &mut Words<'_>, prefix: &str, len: usize) -> Parsed<()> {
    let word = words.word(prefix)?;
    match id(word, prefix)? as usize == len {
        true => Ok(()),
        false => Err(format!("'{word}' comes where {prefix}{len} is next")),
    }
}

fn statement(graph: &mut Graph, words: &mut Words<'_>) -> Parsed<()> {
    match words.word("a statement")? {
        "graph" => {
            graph.arch = words.word("an architecture")?.into();
            graph.context = words.value("context")?;
            graph.vocab = words.value("vocab")?;
        }
        "symbol" => graph.symbols.push(Symbol {
            name: words.word("a name")?.into(),
            max: words.value("max")?,
        }),
        "kv" => graph.kv.push(KvLayer {
            kv_heads: words.value("kv_heads")?,
            head_dim: words.value("head_dim")?,
            values: values(words)?,
        }),
        "rope" => {
            next_id(words, "rope", graph.ropes.len())?;
            graph.ropes.push(rope(words)?);
        }
        "weight" => {
            next_id(words, "w", graph.weights.len())?;
            graph.weights.push(weight(words)?);
        }
        "site" => {
            next_id(words, "site", graph.sites.len())?;
            let name = words.word("a name")?.into();
            let k = words.number("a width")?;
            words.exactly("->")?;
            let n = words.number("a width")?;
            let grouped = words.optional("grouped")?.unwrap_or(false);
            graph.add_site(Site {
                name,
                k,
                n,
                grouped,
            });
        }
        "output" => {
            if graph.logits != NO_VALUE {
                return Err("outputs are stated twice".into());
            }
            graph.logits = ValueId(id(words.word("the logits")?, "%")?);
            graph.hidden = ValueId(id(words.word("the hidden rows")?, "%")?);
        }
        word => node(graph, word, words)?,
    }
    words.end()
}

fn weight(words: &mut Words<'_>) -> Parsed<WeightDecl> {
    let name = words.word("a name")?.into();
    let shape = bracketed(words.word("a shape")?)?
        .map(|extent| number(extent, "an extent"))
        .collect::<Parsed<_>>()?;
    let word = words.word("a format")?;
    let format = Format::by_name(word).ok_or_else(|| format!("'{word}' is no format"))?;
    Ok(WeightDecl {
        name,
        shape,
        format,
    })
}

/// The parts of `[a,b,c]`.
fn bracketed(word: &str) -> Parsed<impl Iterator<Item = &str>> {
    let inner = word.strip_prefix('[').and_then(|w| w.strip_suffix(']'));
    let inner = inner.ok_or_else(|| format!("'{word}' is no shape"))?;
    Ok(inner.split(',').filter(|part| !part.is_empty()))
}

fn node(graph: &mut Graph, defined: &str, words: &mut Words<'_>) -> Parsed<()> {
    let at = graph.nodes.len() as u32;
    if id(defined, "%")? != at {
        return Err(format!("'{defined}' comes where %{at} is next"));
    }
    let name = words.word("a name")?.into();
    let shape = bracketed(words.word("a shape")?)?
        .map(|extent| {
            let symbol = graph.symbols.iter().position(|s| s.name == extent);
            match symbol {
                Some(symbol) => Ok(Dim::Sym(SymId(symbol as u32))),
                None => Ok(Dim::Const(number(extent, "an extent")?)),
            }
        })
        .collect::<Parsed<_>>()?;
    words.exactly("=")?;
    let op = op(words)?;
    let mut inputs = vec![];
    for word in words.rest() {
        inputs.push(ValueId(id(word, "%")?));
    }
    graph.values.push(Value {
        name,
        shape,
        def: NodeId(at),
    });
    graph.nodes.push(Node {
        op,
        inputs,
        output: ValueId(at),
    });
    Ok(())
}

/// The (first) site of products that adapters may change.
fn stated_site(words: &mut Words<'_>, key: &str) -> Parsed<Option<SiteId>> {
    let word = words.stated(key);
    word.map(|word| Ok(SiteId(id(word, "site")?))).transpose()
}

fn op(words: &mut Words<'_>) -> Parsed<Op> {
    Ok(match words.word("an op")? {
        "input" => {
            words.exactly("tokens")?;
            Op::Input(Input::Tokens)
        }
        "weight" => Op::Weight(WeightId(id(words.word("a weight")?, "w")?)),
        "gather" => Op::Gather,
        "select_rows" => Op::SelectRows,
        "matmul" => Op::MatMul {
            site: stated_site(words, "site")?,
        },
        "scale" => Op::Scale(words.value("by")?),
        "rms_norm" => Op::RmsNorm {
            eps: words.value("eps")?,
            group: words.value("group")?,
        },
        "softmax" => Op::Softmax {
            group: words.value("group")?,
        },
        "route" => Op::Route(route(words)?),
        "head_matmul" => Op::HeadMatMul {
            sites: stated_site(words, "sites")?,
        },
        "lanes" => Op::Lanes {
            group: words.value("group")?,
            first: words.value("first")?,
            count: words.value("count")?,
        },
        "join" => Op::Join {
            left: words.value("left")?,
            right: words.value("right")?,
        },
        "experts" => Op::Experts {
            combine: words.value("combine")?,
            sites: stated_site(words, "sites")?,
        },
        "rope" => Op::Rope {
            rope: RopeId(id(words.attribute("spec")?, "rope")?),
            head_dim: words.value("head_dim")?,
        },
        "attention" => Op::Attention(attention(words)?),
        word => elementwise(word).ok_or_else(|| format!("'{word}' is no op"))?,
    })
}

fn elementwise(word: &str) -> Option<Op> {
    let unary = UNARY.iter().find(|(_, w)| *w == word);
    let binary = BINARY.iter().find(|(_, w)| *w == word);
    match (unary, binary) {
        (Some((op, _)), _) => Some(Op::Unary(*op)),
        (_, Some((op, _))) => Some(Op::Binary(*op)),
        _ => None,
    }
}

fn attention(words: &mut Words<'_>) -> Parsed<AttentionSpec> {
    Ok(AttentionSpec {
        layer: words.value("layer")?,
        heads: words.value("heads")?,
        kv_heads: words.value("kv_heads")?,
        head_dim: words.value("head_dim")?,
        values: values(words)?,
        scale: words.value("scale")?,
        window: words.optional("window")?,
        softcap: words.optional("softcap")?,
    })
}

fn route(words: &mut Words<'_>) -> Parsed<RouteSpec> {
    Ok(RouteSpec {
        experts: words.value("experts")?,
        used: words.value("used")?,
        score: match words.attribute("score")? {
            "softmax" => RouteScore::Softmax,
            "sigmoid" => RouteScore::Sigmoid,
            word => return Err(format!("'{word}' is no score")),
        },
        groups: groups(words)?,
        normalize: words.value("normalize")?,
        scale: words.value("scale")?,
    })
}

fn values(words: &mut Words<'_>) -> Parsed<AttentionValues> {
    let lanes = words.optional("values_of_keys")?;
    Ok(lanes.map_or(AttentionValues::Own, AttentionValues::OfKeys))
}

fn groups(words: &mut Words<'_>) -> Parsed<Option<RouteGroups>> {
    let Some(count) = words.optional("groups")? else {
        return Ok(None);
    };
    let word = words.attribute("group_score")?;
    let score = GROUP_SCORES.iter().find(|(_, w)| *w == word);
    let (score, _) = score.ok_or_else(|| format!("'{word}' is no score of a group"))?;
    Ok(Some(RouteGroups {
        count,
        used: words.value("used_groups")?,
        score: *score,
    }))
}

fn rope(words: &mut Words<'_>) -> Parsed<RopeSpec> {
    let layout = match words.attribute("layout")? {
        "half" => RopeLayout::Half,
        "interleaved" => RopeLayout::Interleaved,
        word => return Err(format!("'{word}' is no layout")),
    };
    let scaling = match words.attribute("scaling")? {
        "none" => RopeScaling::None,
        "linear" => RopeScaling::Linear {
            factor: words.value("factor")?,
        },
        "dynamic" => RopeScaling::Dynamic {
            factor: words.value("factor")?,
            original: words.value("original")?,
        },
        "llama3" => RopeScaling::Llama3 {
            factor: words.value("factor")?,
            low_freq: words.value("low_freq")?,
            high_freq: words.value("high_freq")?,
            original: words.value("original")?,
        },
        "yarn" => RopeScaling::Yarn {
            factor: words.value("factor")?,
            original: words.value("original")?,
            beta_fast: words.value("beta_fast")?,
            beta_slow: words.value("beta_slow")?,
            attn_factor: words.value("attn_factor")?,
            truncate: words.value("truncate")?,
        },
        "divisors" => RopeScaling::Divisors(divisors(words, "list")?),
        "long" => RopeScaling::Long {
            short: divisors(words, "short")?,
            long: divisors(words, "long")?,
            original: words.value("original")?,
            attn_factor: words.value("attn_factor")?,
        },
        word => return Err(format!("'{word}' is no scaling")),
    };
    Ok(RopeSpec {
        dims: words.value("dims")?,
        base: words.value("base")?,
        layout,
        scaling,
    })
}

fn divisors(words: &mut Words<'_>, key: &str) -> Parsed<Vec<f32>> {
    let list = words.attribute(key)?.split(',');
    list.map(|d| number(d, "a divisor")).collect()
}
