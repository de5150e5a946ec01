"""Evaluates `template.yaml` like CloudFormation: the transform to plain resources, and the values for given parameters.

It supports the CloudFormation functions that the template uses, and refuses all others by name.
"""

import copy
import re

PSEUDO = {
    "AWS::AccountId": "123456789012", "AWS::Partition": "aws", "AWS::Region": "eu-central-1", "AWS::StackName": "tidegate",
    "AWS::StackId": "arn:aws:cloudformation:eu-central-1:123456789012:stack/tidegate/0", "AWS::URLSuffix": "amazonaws.com",
}
# The value of a property that is to be omitted.
NO_VALUE = object()
# The location of the packaged program. Nothing is fetched from there.
CODE = "s3://packages/bootstrap.zip"


class Refused(Exception):
    """CloudFormation would refuse it. The message contains the reason."""


def parse(text):
    from samcli.yamlhelper import yaml_parse
    return yaml_parse(text)


def transform(source):
    """Returns the plain template, as the SAM transform on AWS creates it."""
    from samtranslator.translator.transform import transform as translate
    source = copy.deepcopy(source)
    source.setdefault("Globals", {}).setdefault("Function", {})["CodeUri"] = CODE
    for resource in source["Resources"].values():
        resource.get("Properties", {}).pop("CodeUri", None)
    return translate(source, {}, _NoPolicyNames())


class _NoPolicyNames:
    """The template uses full ARNs for AWS managed policies, so there is no need to ask AWS for the list."""

    @staticmethod
    def load():
        return {}


class Stack:
    """The resources that exist with the given parameters, with every function evaluated.

    Values that AWS decides appear as `{Name}` or `{Name.Attribute}`, unless `attributes` contains them.
    """

    def __init__(self, plain, parameters=None, attributes=None):
        self.plain = plain
        self.attributes = attributes or (lambda _name, _attribute: None)
        self.parameters = _checked(plain["Parameters"], parameters or {})
        if broken := self._broken():
            raise Refused("; ".join(broken))
        self.resources = {name: self._resource(resource) for name, resource in plain["Resources"].items()
                          if self._holds(resource.get("Condition"))}

    def refuses(self, **changed):
        """Returns whether CloudFormation would refuse these other values by the template's own rules."""
        other = copy.copy(self)
        other.parameters = {**self.parameters, **changed}
        return bool(other._broken())

    def _broken(self):
        rules = [rule for rule in self.plain.get("Rules", {}).values() if self._value(rule.get("RuleCondition", True))]
        return [each["AssertDescription"] for rule in rules for each in rule["Assertions"] if not self._value(each["Assert"])]

    def of_type(self, wanted):
        return {name: resource["Properties"] for name, resource in self.resources.items() if resource["Type"] == wanted}

    def _resource(self, resource):
        depends = resource.get("DependsOn", [])
        return {"Type": resource["Type"], "DependsOn": [depends] if isinstance(depends, str) else depends,
                "Properties": self._value(resource.get("Properties", {}))}

    def _holds(self, condition):
        return condition is None or self._value(self.plain["Conditions"][condition])

    def _value(self, value):
        if isinstance(value, list):
            return [item for item in map(self._value, value) if item is not NO_VALUE]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            (name, argument), = value.items()
            if name in ("Ref", "Condition") or name.startswith("Fn::"):
                return self._call(name, argument)
        inner = {name: self._value(item) for name, item in value.items()}
        return {name: item for name, item in inner.items() if item is not NO_VALUE}

    def _call(self, name, argument):
        known = {"Ref": self._ref, "Condition": self._condition, "Fn::GetAtt": self._attribute, "Fn::Sub": self._sub,
                 "Fn::If": self._if, "Fn::FindInMap": self._find}
        if name in known:
            return known[name](argument)
        plain = [self._value(item) for item in argument]
        if name == "Fn::Join":
            return plain[0].join(plain[1])
        if name == "Fn::Equals":
            return str(plain[0]) == str(plain[1])
        if name == "Fn::Not":
            return not plain[0]
        if name == "Fn::And":
            return all(plain)
        if name == "Fn::Or":
            return any(plain)
        if name == "Fn::Select":
            return plain[1][int(plain[0])]
        if name == "Fn::EachMemberEquals":
            return all(member == plain[1] for member in plain[0])
        raise Refused(f"{name} is not known here")

    def _ref(self, name):
        if name == "AWS::NoValue":
            return NO_VALUE
        for known in (PSEUDO, self.parameters):
            if name in known:
                return known[name]
        return self._attribute([name, None])

    def _condition(self, argument):
        # `Condition` is a function in conditions, and an ordinary field in the statement of a policy.
        return self._holds(argument) if isinstance(argument, str) else {"Condition": self._value(argument)}

    def _attribute(self, argument):
        name, attribute = argument.split(".", 1) if isinstance(argument, str) else argument
        if name not in self.plain["Resources"]:
            raise Refused(f"{name} is neither a parameter nor a resource")
        known = self.attributes(name, attribute)
        return known if known is not None else "{" + name + (f".{attribute}" if attribute else "") + "}"

    def _sub(self, text):
        return re.sub(r"\$\{([^!}]+)\}", lambda found: str(self._substitute(found.group(1))), text)

    def _substitute(self, name):
        return self._ref(name) if "." not in name else self._attribute(name)

    def _if(self, argument):
        condition, yes, no = argument
        return self._value(yes if self._holds(condition) else no)

    def _find(self, argument):
        table, row, column = (str(self._value(item)) for item in argument)
        return self.plain["Mappings"][table][row][column]


def _checked(declared, given):
    unknown = given.keys() - declared.keys()
    if unknown:
        raise Refused(f"no such parameter: {', '.join(sorted(unknown))}")
    return {name: _parameter(name, rules, given) for name, rules in declared.items()}


def _parameter(name, rules, given):
    if name not in given and "Default" not in rules:
        raise Refused(f"{name}: is missing")
    value = given.get(name, rules.get("Default"))
    # A pattern is for each value of a list.
    values = [each.strip() for each in value.split(",")] if rules["Type"] == "CommaDelimitedList" else [str(value)]
    if "AllowedPattern" in rules and not all(re.fullmatch(rules["AllowedPattern"], each) for each in values):
        raise Refused(f"{name}: {rules['ConstraintDescription']}, got {value!r}")
    if "AllowedValues" in rules and str(value) not in map(str, rules["AllowedValues"]):
        raise Refused(f"{name}: must be one of {rules['AllowedValues']}, got {value!r}")
    if not rules.get("MinValue", float("-inf")) <= (value if isinstance(value, (int, float)) else 0) <= rules.get("MaxValue", float("inf")):
        raise Refused(f"{name}: must be {rules.get('MinValue')} to {rules.get('MaxValue')}, got {value!r}")
    return values if rules["Type"] == "CommaDelimitedList" else value
