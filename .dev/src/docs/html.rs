// SPDX-License-Identifier: Apache-2.0
//! The reference and the guide in plain HTML: no server, no network, one script for the search box.

use super::man::families;
use super::page::{Kind, Page, Tables};
use pulldown_cmark::html::push_html;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::BTreeMap;

const STYLE: &str = "\
body{font:16px/1.5 system-ui,sans-serif;max-width:50em;margin:2em auto;padding:0 1em;color:#222}
pre,code{font-family:ui-monospace,monospace;font-size:.9em}pre{background:#f4f4f2;padding:.7em;overflow-x:auto}
pre code{font-size:inherit}h1{font-size:1.6em}h2{font-size:1.15em;margin-top:1.6em}a{color:#05668d}nav{margin-bottom:1.5em}
table{border-collapse:collapse}td,th{text-align:left;vertical-align:top;padding:.2em .8em .2em 0}
input{font:inherit;width:20em;padding:.2em .4em}#found{list-style:none;padding:0}
@media(prefers-color-scheme:dark){body{background:#1c1c1c;color:#ddd}pre{background:#2a2a2a}a{color:#7cc4e8}}
";

/// Finds names that hold all words typed, those that begin with them first.
const SCRIPT: &str = "\
const box=document.getElementById('search'),found=document.getElementById('found');
box.addEventListener('input',()=>{
  const words=box.value.toLowerCase().split(/\\s+/).filter(w=>w);
  found.replaceChildren();
  if(!words.length)return;
  const hits=INDEX.filter(e=>words.every(w=>(e[0]+' '+e[2]).toLowerCase().includes(w)));
  hits.sort((a,b)=>b[0].startsWith(words[0])-a[0].startsWith(words[0])||a[0].length-b[0].length);
  for(const [name,page,brief] of hits.slice(0,40)){
    const item=document.createElement('li'),link=document.createElement('a');
    link.href=page;link.textContent=name;item.append(link,' '+brief);found.append(item);
  }
});
";

/// A file of the site: its name and text.
pub type File = (String, String);

/// A chapter of the guide: name, and text in Markdown.
pub struct Chapter {
    pub name: String,
    pub text: String,
}

impl Chapter {
    pub fn title(&self) -> &str {
        self.text.lines().next().unwrap_or_default().trim_start_matches("# ")
    }
}

/// All files of the site.
pub fn site(pages: &[Page], chapters: &[Chapter], tables: &Tables, version: &str) -> Vec<File> {
    let mut where_is: BTreeMap<String, String> = BTreeMap::new();
    for page in pages {
        let file = format!("{}.html", page.name);
        where_is.extend(page.names(tables).into_iter().map(|name| (name, file.clone())));
    }
    let mut files: Vec<File> = pages
        .iter()
        .map(|page| (format!("{}.html", page.name), reference(page, tables, &where_is)))
        .collect();
    for chapter in chapters {
        let body = prose(&chapter.text, &where_is);
        files.push((format!("{}.html", chapter.name), frame(chapter.title(), &body)));
    }
    files.push(("index.html".to_owned(), index(pages, chapters, version)));
    files.push(("style.css".to_owned(), STYLE.to_owned()));
    files.push(("search.js".to_owned(), search(pages, chapters, &where_is)));
    files
}

fn index(pages: &[Page], chapters: &[Chapter], version: &str) -> String {
    let mut body = format!(
        "<h1>Tombolo {}</h1>\n<p>OpenSHMEM 1.6: guide and reference. <label>Search \
         <input id=\"search\" autofocus></label></p>\n<ul id=\"found\"></ul>\n<h2>Guide</h2>\n<ol>\n",
        escaped(version)
    );
    for chapter in chapters {
        let (name, title) = (&chapter.name, escaped(chapter.title()));
        body += &format!("<li><a href=\"{name}.html\">{title}</a></li>\n");
    }
    body += "</ol>\n<h2>Reference</h2>\n<table>\n";
    for page in pages {
        let (name, brief) = (&page.name, escaped(&page.brief));
        body += &format!("<tr><td><a href=\"{name}.html\">{name}</a></td><td>{brief}</td></tr>\n");
    }
    body += "</table>\n<script src=\"search.js\"></script>\n";
    frame("Tombolo", &body)
}

/// The script with what it searches: names, pages and what they are about.
fn search(pages: &[Page], chapters: &[Chapter], where_is: &BTreeMap<String, String>) -> String {
    let briefs: BTreeMap<String, &str> =
        pages.iter().map(|page| (format!("{}.html", page.name), page.brief.as_str())).collect();
    let row = |name: &str, file: &str, brief: &str| format!("[{name:?},{file:?},{brief:?}]");
    let mut rows: Vec<String> = where_is
        .iter()
        .map(|(name, file)| row(name, file, briefs.get(file).copied().unwrap_or_default()))
        .collect();
    rows.extend(chapters.iter().map(|chapter| {
        row(chapter.title(), &format!("{}.html", chapter.name), "chapter of the guide")
    }));
    format!("const INDEX=[\n{}\n];\n{SCRIPT}", rows.join(",\n"))
}

fn reference(page: &Page, tables: &Tables, where_is: &BTreeMap<String, String>) -> String {
    let mut body = format!("<h1>{}</h1>\n<p>{}</p>\n", page.name, escaped(&page.brief));
    body += &format!("<h2>Synopsis</h2>\n<pre>#include &lt;{}&gt;\n", page.header());
    let mut last = Kind::Plain;
    for line in &page.synopsis {
        if line.kind != last {
            last = line.kind;
            body += match line.kind {
                Kind::Context => "\n/* each also as shmem_ctx_..., with shmem_ctx_t ctx first */\n",
                Kind::Generic => "\n/* C11 and C++, for all these types */\n",
                Kind::Deprecated => "\n/* deprecated */\n",
                Kind::DeprecatedGeneric => "\n/* deprecated, C11 and C++, for all these types */\n",
                Kind::Plain | Kind::Extension => "\n",
            };
        }
        body += &format!("{};\n", escaped(&line.shown()));
    }
    body += "</pre>\n";
    for (names, choices) in families(page, tables) {
        body += &format!("<p>TYPENAME in {names}: {}.</p>\n", escaped(&choices));
    }
    if !page.arguments.is_empty() {
        body += "<h2>Arguments</h2>\n<table>\n";
        for (name, meaning) in &page.arguments {
            let meaning = linked(&escaped(meaning), where_is);
            body += &format!("<tr><td><code>{name}</code></td><td>{meaning}</td></tr>\n");
        }
        body += "</table>\n";
    }
    for title in ["Description", "On return", "Errors", "In Tombolo"] {
        body += &format!("<h2>{title}</h2>\n");
        for paragraph in page.section(title).split("\n\n") {
            body += &format!("<p>{}</p>\n", linked(&escaped(paragraph), where_is));
        }
    }
    body += &format!("<h2>Example</h2>\n<pre>{}</pre>\n", escaped(page.section("Example")));
    body += &format!("<p>On 2 PEs it prints</p>\n<pre>{}</pre>\n", escaped(page.section("Output")));
    let see: Vec<String> = page.see_also().map(|name| linked(name, where_is)).collect();
    body += &format!("<h2>See also</h2>\n<p>{}</p>\n", see.join(", "));
    frame(&page.name, &body)
}

fn frame(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{}</title><link rel=\"stylesheet\" href=\"style.css\">\
         </head>\n<body>\n<nav><a href=\"index.html\">Tombolo: guide and reference</a></nav>\n\
         {body}</body></html>\n",
        escaped(title)
    )
}

/// Markdown as HTML: names of routines become links to their pages, files of chapters links to theirs.
fn prose(text: &str, where_is: &BTreeMap<String, String>) -> String {
    // Programs and labels of links stay as they are.
    let mut as_is = false;
    let events = Parser::new_ext(text, Options::ENABLE_TABLES).map(|event| match event {
        Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
            as_is = true;
            let dest_url = match dest_url.strip_suffix(".md") {
                Some(chapter) => format!("{chapter}.html").into(),
                None => dest_url,
            };
            Event::Start(Tag::Link { link_type, dest_url, title, id })
        }
        Event::Start(Tag::CodeBlock(_)) => {
            as_is = true;
            event
        }
        Event::End(TagEnd::Link | TagEnd::CodeBlock) => {
            as_is = false;
            event
        }
        Event::Text(text) if !as_is => Event::InlineHtml(linked(&escaped(&text), where_is).into()),
        Event::Code(code) if !as_is => {
            Event::InlineHtml(format!("<code>{}</code>", linked(&escaped(&code), where_is)).into())
        }
        other => other,
    });
    let mut body = String::new();
    push_html(&mut body, events);
    body
}

/// Names of routines become links to their pages.
fn linked(text: &str, where_is: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = text;
    while let Some(begin) = rest.find("shmem") {
        let end = begin + rest[begin..].find(|c| !is_word(c)).unwrap_or(rest.len() - begin);
        let word = &rest[begin..end];
        out += &rest[..begin];
        match where_is.get(word) {
            Some(file) => out += &format!("<a href=\"{file}\">{word}</a>"),
            None => out += word,
        }
        rest = &rest[end..];
    }
    out + rest
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
