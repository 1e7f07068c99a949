import org.jetbrains.kotlin.gradle.dsl.JvmTarget

plugins {
    alias(libs.plugins.kotlin.jvm)
    alias(libs.plugins.protobuf)
}

java {
    sourceCompatibility = JavaVersion.VERSION_1_8
    targetCompatibility = JavaVersion.VERSION_1_8
}

kotlin {
    compilerOptions {
        jvmTarget = JvmTarget.JVM_1_8
        allWarningsAsErrors = true
        // Refuses what a JDK has and Android lacks.
        freeCompilerArgs.add("-Xjdk-release=1.8")
    }
}

protobuf {
    protoc {
        artifact = "com.google.protobuf:protoc:${libs.versions.protobuf.get()}"
    }
    generateProtoTasks {
        all().forEach { task -> task.builtins { named("java") { option("lite") } } }
    }
}

dependencies {
    api(project(":trainer"))
    api(libs.okhttp)
    implementation(libs.protobuf.javalite)
}
