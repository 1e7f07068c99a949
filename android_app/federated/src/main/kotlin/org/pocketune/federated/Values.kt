package org.pocketune.federated

import org.pocketune.federated.wire.ConfigRecord
import org.pocketune.federated.wire.ConfigRecordValue
import org.pocketune.federated.wire.MetricRecord
import org.pocketune.federated.wire.MetricRecordValue

/** The entries of a server's config: Double, Long, Boolean or String; what has another type is given as its message. */
internal fun configOf(record: ConfigRecord): Map<String, Any> = record.itemsList.associate { item ->
    val value = item.value
    item.key to when (value.valueCase) {
        ConfigRecordValue.ValueCase.DOUBLE -> value.double
        ConfigRecordValue.ValueCase.SINT64 -> value.sint64
        ConfigRecordValue.ValueCase.UINT64 -> value.uint64
        ConfigRecordValue.ValueCase.BOOL -> value.bool
        ConfigRecordValue.ValueCase.STRING -> value.string
        else -> value
    }
}

/** Figures of a reply, whole numbers and others. */
internal fun metricsOf(figures: Map<String, Number>): MetricRecord = MetricRecord.newBuilder().apply {
    for ((name, figure) in figures) {
        val value = MetricRecordValue.newBuilder()
        if (figure is Int || figure is Long) value.sint64 = figure.toLong() else value.double = figure.toDouble()
        addItems(MetricRecord.Item.newBuilder().setKey(name).setValue(value))
    }
}.build()

/** What a client says of itself: texts and whole numbers. */
internal fun configOf(said: Map<String, Any>): ConfigRecord = ConfigRecord.newBuilder().apply {
    for ((name, what) in said) {
        val value = ConfigRecordValue.newBuilder()
        if (what is String) value.string = what else value.sint64 = (what as Number).toLong()
        addItems(ConfigRecord.Item.newBuilder().setKey(name).setValue(value))
    }
}.build()
